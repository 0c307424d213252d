"""Plans for a GPU. Here on the CPU, with the naive reference behind the ops and invented times; at the end on a GPU."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.gpu import choose as room
from dynamicgate.inference.gpu import ffn as layers
from dynamicgate.inference.gpu.choose import compile_on_gpu, fastest
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import find_pairs
from dynamicgate.inference.gpu.verify import Truth
from tests.inference.models import assert_same, scatter, undecided

GATES = {
    "linear": dg.GateConfig(net="linear", block=32),
    "ragged": dg.GateConfig(net="linear", block=40),
    "low-rank": dg.GateConfig(net="low-rank", rank=3, block=32),
    "two-layer": dg.GateConfig(net="two-layer", rank=5, block=32),
    "top-k": dg.GateConfig(block=32, top_k=2),
    "always open": dg.GateConfig(block=32, always_open=1, theta=0.7),
    "scaled": dg.GateConfig(block=32, scale=True, tau=0.6),
    "threshold": dg.GateConfig(block=32, theta=0.8, tau=0.5),
    "soft_width": dg.GateConfig(block=32, theta=0.6, tau=0.5, soft_width=1.5),
    "router": dg.GateConfig(kind="router", block=32, top_k=2),
    "static": dg.GateConfig(kind="static", block=32),
    "units": dg.GateConfig(block=1),
}
Compile = Callable[..., CompiledModel]


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> Compile:
    """`compile_on_gpu` on the CPU, as if `favourite` were fastest at each number of tokens."""

    def run(
        model: nn.Module, x: Tensor, favourite: str = "gated", batches: tuple[int, ...] = (1, 16, 64)
    ) -> CompiledModel:
        def invented(calls: Any, xs: Any, seconds: float) -> dict[str, float]:
            return {name: 1.0 if name.startswith(favourite) else 3.0 for name in calls}

        plain: Any = lambda name: layers.WAYS[name.removesuffix(layers.COMPILED)]  # noqa: E731
        for module in (room, layers):
            monkeypatch.setattr(module, "way", plain)
        monkeypatch.setattr(room, "race", invented)
        return compile_on_gpu(model, x, batches=batches, calibration=None, seconds=1.0)

    return run


def model_with(config: dg.GateConfig, **options: Any) -> nn.Sequential:
    """A layer between others, whose gate is open for some inputs and closed for others."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.LayerNorm(20), dg.nn.FFN(20, 96, 24, **options), nn.ReLU(), nn.Linear(24, 5))
    dg.gate_(model, config, where="1.down")
    scatter(model)
    return model.eval()


def feed_forwards(fast: CompiledModel) -> list[FeedForward]:
    return [m for m in fast.modules() if isinstance(m, FeedForward)]


@pytest.mark.parametrize("favourite", ["dense", "dense, fused", "gated", "decode"])
@pytest.mark.parametrize("gate", GATES)
def test_every_kind_of_gate_gives_the_hard_models_outputs_in_every_way(
    gate: str, favourite: str, compiled: Compile
) -> None:
    model, x = model_with(GATES[gate]), torch.randn(64, 20)
    fast = compiled(model, x, favourite)
    (layer,) = feed_forwards(fast)
    assert layer.way_for(1).startswith(favourite) or favourite not in layer.candidates(1)
    for rows in (1, 3, 16, 17, 64):
        assert_same(fast, model, x[:rows], undecided(model, x[:rows]))
    assert fast.plan.checked["rows"] > 0
    assert not any("stays in torch" in note for note in fast.plan.notes)


@pytest.mark.parametrize("favourite", ["dense", "dense, fused", "gated", "decode"])
@pytest.mark.parametrize(
    "options",
    [{"activation": "gelu", "bias": False}, {"activation": "silu", "value": True}, {"activation": "relu"}],
    ids=["gelu", "swiglu", "relu"],
)
def test_every_shape_gives_the_hard_models_outputs_in_every_way(
    options: dict[str, Any], favourite: str, compiled: Compile
) -> None:
    model, x = model_with(GATES["linear"], **options), torch.randn(6, 10, 20)
    fast = compiled(model, x, favourite)
    tied = undecided(model, x).reshape(len(x), -1).any(1)
    assert_same(fast, model, x, tied)
    names = [row.name for row in fast.plan.chains[0][0].layers]
    assert names == (["1.up", "1.value", "1.down"] if options.get("value") else ["1.up", "1.down"])


def test_two_linear_layers_around_an_activation_are_found_without_the_module(compiled: Compile) -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 5))
    dg.gate_(model, GATES["linear"], where="3")
    scatter(model.eval())
    x = torch.randn(64, 20)
    fast = compiled(model, x)
    assert len(feed_forwards(fast)) == 1
    assert_same(fast, model, x, undecided(model, x))


class Loops(nn.Module):
    """No tracer can follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 20)
        self.blocks = nn.ModuleList(dg.nn.FFN(20, 96, activation="gelu") for _ in range(2))
        self.head = nn.Linear(20, 5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            if float(x.abs().sum()) > 0:
                x = x + block(x)
        return self.head(x)


def test_layers_of_a_model_that_cannot_be_traced_are_found_too(compiled: Compile) -> None:
    model = Loops().eval()
    dg.gate_(model, GATES["linear"], where="blocks.*.down")
    scatter(model)
    ids = torch.randint(0, 11, (40, 7))
    fast = compiled(model, ids)
    assert len(feed_forwards(fast)) == 2
    with torch.no_grad():
        torch.testing.assert_close(fast(ids), model(ids), rtol=1e-4, atol=1e-5)
    assert [chain[0].layers[0].name for chain in fast.plan.chains] == ["blocks.0.up", "blocks.1.up"]


def test_what_stays_in_torch_is_said_and_runs(compiled: Compile) -> None:
    deep = dg.nn.GatedMLP((20, 64, 64, 5), GATES["linear"])
    tanh = model_with(GATES["linear"], activation="tanh")
    same = model_with(dg.GateConfig(block=32, reads="same"))
    soft = model_with(dg.GateConfig(block=32, evaluate="soft"))
    switch = nn.Sequential(dg.nn.Switch(20, 4, 32, capacity=0.7), nn.Linear(20, 5))
    features = nn.Sequential(dg.nn.FFN(20, 64, 5))
    dg.gate_(features, GATES["linear"], where="0.down")
    dg.gate_(features, dg.GateConfig(block=4), where="0.up")
    reasons = {
        "another gate acts on its layers": deep,
        "its activation is tanh": tanh,
        "it reads the units it closes": same,
        "it is evaluated softly": soft,
        "its experts have a capacity": switch,
        "it decides about input features": features,
    }
    x = torch.randn(64, 20)
    for reason, model in reasons.items():
        if reason != "its experts have a capacity":
            scatter(model)
        fast = compiled(model.eval(), x)
        assert reason in str(fast.plan), reason
        assert feed_forwards(fast) == []
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))


def test_experts_without_a_capacity_are_found(compiled: Compile) -> None:
    model = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), dg.nn.Switch(20, 4, 32, top_k=2), nn.Linear(20, 5)).eval()
    scatter(model)
    x = torch.randn(64, 20)
    fast = compiled(model, x)
    assert len(feed_forwards(fast)) == 1
    assert_same(fast, model, x, undecided(model, x))


def test_a_layer_that_is_wrong_or_answers_with_nan_is_refused() -> None:
    model = model_with(GATES["linear"])
    (found,), _ = find_pairs(model, dg.named_gates(model))
    (pair,) = found.pairs
    truth = Truth(pair, torch.randn(64, 20))
    layer = FeedForward(pair)
    assert truth.check(layer, 16) < 1e-5
    for wrong in (lambda x: layer(x) * 1.001, lambda x: layer(x) * torch.nan, lambda x: layer(x).roll(1, 0)):
        with pytest.raises(ValueError, match="does not compute what the model computes"):
            truth.check(wrong, 16)


def test_rows_at_a_threshold_are_counted_and_where_all_are_only_dense_ways_are_trusted(compiled: Compile) -> None:
    model = model_with(GATES["linear"])
    gate = dg.named_gates(model)["1.down"]
    nn.init.zeros_(gate.net.weight)
    nn.init.zeros_(gate.net.bias)
    fast = compiled(model, torch.randn(64, 20))
    assert fast.plan.checked == {"rows": 0, "ties": 128, "error": 0.0}
    assert "only dense ways can be trusted" in str(fast.plan)
    assert all(regime.chosen.startswith("dense") for regime in fast.plan.chains[0])


def test_dense_is_chosen_unless_another_way_is_ahead_of_it() -> None:
    times = {"ungated": 1.0, "dense": 2.0, "dense, compiled": 1.5, "gated": 1.49, "decode": 1.8}
    assert fastest(times) == "dense, compiled"
    assert fastest(times | {"gated": 1.4}) == "gated"
    assert fastest(times | {"decode": 1.0}) == "decode"


def test_the_way_for_few_tokens_is_not_asked_for_more(compiled: Compile) -> None:
    model, x = model_with(GATES["linear"]), torch.randn(64, 20)
    (layer,) = feed_forwards(compiled(model, x, "decode", batches=(4, 16)))
    assert [layer.way_for(tokens) for tokens in (1, 4, 16, 17, 400)] == ["decode"] * 3 + ["dense"] * 2
    (layer,) = feed_forwards(compiled(model, x, "decode", batches=(16, 1024)))
    assert [layer.way_for(tokens) for tokens in (16, 17, 128, 2000)] == ["decode"] + ["dense"] * 3


def test_no_rows_and_wrong_inputs(compiled: Compile) -> None:
    model = model_with(GATES["linear"])
    fast = compiled(model, torch.randn(64, 20))
    assert fast(torch.randn(0, 20)).shape == (0, 5)
    (layer,) = feed_forwards(fast)
    for wrong in (torch.randn(3, 19), torch.randn(3, 20, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"expected torch.float32 on cpu with 20 features"):
            layer(wrong)


def test_the_model_is_left_alone_and_a_copy_stands_on_its_own(compiled: Compile) -> None:
    model, x = model_with(GATES["linear"]), torch.randn(64, 20)
    before = copy.deepcopy(model.state_dict())
    fast = compiled(model, x)
    y = fast(x)
    twin = copy.deepcopy(fast)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    for parameter in [*model.parameters(), *fast.buffers(), *fast.parameters()]:
        parameter.data.zero_()
    assert torch.equal(twin(x), y)


def test_a_plan_on_a_gpu_says_that_it_is_made_again(compiled: Compile, tmp_path: Path) -> None:
    fast = compiled(model_with(GATES["linear"]), torch.randn(64, 20))
    with pytest.raises(ValueError, match=r"save the model with dynamicgate.save, and compile it where it runs"):
        fast.save(tmp_path / "fast.safetensors")


def test_the_plan_shows_the_layers_their_ways_and_their_macs(compiled: Compile) -> None:
    model, x = model_with(GATES["linear"]), torch.randn(64, 20)
    plan = compiled(model, x).plan
    text = str(plan)
    assert "block-gated (32)" in text
    with dg.usage(model) as used:
        model(x)
    opened = float(used["1.down"].open.sum(1).mean()) * 32
    first = plan.chains[0][0]
    assert [row.macs for row in first.layers] == pytest.approx([opened * 20 + 20 * 3, opened * 24])
    assert sum(row.chosen_us for row in first.layers) == pytest.approx(first.chosen_us)
    assert sum(row.dense_us for row in first.layers) == pytest.approx(first.dense_us)


# --- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning")
class TestOnTheGpu:
    def large(self, dtype: torch.dtype, **options: Any) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.LayerNorm(512), dg.nn.FFN(512, 2048, **options), nn.Linear(512, 16))
        dg.gate_(model, dg.GateConfig(block=128, net="linear"), where="1.down")
        with torch.no_grad():
            gate = dg.named_gates(model)["1.down"]
            gate.net.weight.normal_(std=0.05)
            gate.net.bias.fill_(-0.8)
        return model.cuda().to(dtype).eval(), torch.randn(1024, 512, device="cuda", dtype=dtype)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
    @pytest.mark.parametrize("options", [{}, {"activation": "silu", "value": True}], ids=["relu", "swiglu"])
    def test_a_plan_gives_the_models_outputs_for_any_number_of_tokens(
        self, options: dict[str, Any], dtype: torch.dtype
    ) -> None:
        model, x = self.large(dtype, **options)
        fast = dg.compile(model, x, batches=(1, 16, 1024), seconds=1.0)
        print(fast.plan)
        assert fast.plan.checked["rows"] > 0
        assert not any("does not run here" in note for note in fast.plan.notes), fast.plan.notes
        for rows in (1, 2, 16, 17, 300, 1024):
            with torch.no_grad():
                mine, theirs = fast(x[:rows]).double(), model(x[:rows]).double()
            wrong = (mine - theirs).norm(dim=1) / theirs.norm(dim=1)
            limit = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
            # in 16 bits a logit at its threshold may fall on either side of it, a few times in a thousand rows
            assert float((wrong < limit).double().mean()) >= (1.0 if dtype is torch.float32 and rows < 1024 else 0.5)
            assert float(wrong.median()) < limit

    def test_every_regime_is_as_fast_as_its_fastest_way(self) -> None:
        model, x = self.large(torch.bfloat16)
        fast = dg.compile(model, x, batches=(1, 1024), seconds=2.0)
        for regime in fast.plan.chains[0]:
            assert regime.chosen_us <= min(regime.times.values()) / room.PREFER_DENSE

    def test_recorded_work_is_not_replayed_inside_the_users_own_graph(self) -> None:
        model, x = self.large(torch.bfloat16)
        fast = dg.compile(model, x, batches=(1,), seconds=0.5)
        (layer,) = feed_forwards(fast)
        layer.use_([(None, "gated")], {1: room.Recorded(lambda rows: layers.gated(layer, rows), x[:1])})
        here = x[:1].clone()
        with torch.no_grad():
            expected = fast(here)
            graph = torch.cuda.CUDAGraph()
            aside = torch.cuda.Stream()
            with torch.cuda.stream(aside):
                fast(here)
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                y = fast(here)
            here.copy_(x[5:6])
            graph.replay()
            torch.testing.assert_close(y, fast(x[5:6]))
            assert not torch.equal(y, expected)
            assert copy.deepcopy(layer).recorded == {1: None}
