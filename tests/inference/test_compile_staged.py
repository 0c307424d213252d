"""`compile` on models in stages: early rows leave, and every row gets what the model in evaluation mode gives it."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import ops
from dynamicgate.gating.stages import StageGate, stages_of
from dynamicgate.inference import CompiledModel, verify_model
from dynamicgate.inference.cpu.candidates import DENSE, LayerLayout, packed
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import find_chains
from dynamicgate.inference.cpu.lower import lower_chain
from dynamicgate.inference.cpu.stage_candidates import StagedCandidates
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.graph import trace
from dynamicgate.inference.timing import batches_of
from dynamicgate.masks import put_mask_
from dynamicgate.ops import native
from tests.inference.models import compile_quickly

BATCHES = (1, 3, 17, 300)


def staged_config(decide: str = "margin", stages: tuple[float, ...] = (0.25, 0.35, 0.4)) -> dg.GateConfig:
    return dg.GateConfig(kind="stages", stages=stages, decide=decide)


def staged_mlp(
    sizes: tuple[int, ...] = (20, 48, 40, 5),
    decide: str = "margin",
    stages: tuple[float, ...] = (0.25, 0.35, 0.4),
    **options: object,
) -> dg.nn.GatedMLP:
    torch.manual_seed(0)
    return dg.nn.GatedMLP(sizes, staged_config(decide, stages), **options)  # type: ignore[arg-type]


def gate_of(model: nn.Module) -> StageGate:
    gate = stages_of(model)
    assert gate is not None
    return gate


def cut_in_half_(model: nn.Module, x: Tensor) -> Tensor:
    """Set every cut so that half of the rows open the next stage; returns the stage at which each row stops."""
    model.eval()
    for k in range(gate_of(model).count - 1):
        score = scores(model, x)[:, k]
        gate_of(model).cut[k] = (score.sort().values[len(x) // 2 - 1 : len(x) // 2 + 1]).mean()
    return stops(model, x)


@torch.no_grad()
def scores(model: nn.Module, x: Tensor) -> Tensor:
    with dg.usage(model) as used:
        model(x)
        assert used.stages is not None
        return used.stages.score


@torch.no_grad()
def stops(model: nn.Module, x: Tensor) -> Tensor:
    with dg.usage(model) as used:
        model(x)
        assert used.stages is not None
        return used.stages.open.sum(-1) - 1


def assert_same(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> None:
    near = ((scores(model, x) - gate_of(model).cut).abs() < 1e-5).any(1)
    assert near.double().mean() < 0.1
    with torch.no_grad():
        for rows in BATCHES:
            torch.testing.assert_close(run(x[:rows])[~near[:rows]], model(x[:rows])[~near[:rows]], rtol=1e-5, atol=1e-5)


def candidates_of(model: nn.Module, x: Tensor) -> StagedCandidates:
    (chain,), _ = find_chains(model, trace(model), {}, x)
    assert chain.stages is gate_of(model)
    return StagedCandidates(lower_chain(chain, {}))


def sequential(decide: str) -> nn.Module:
    torch.manual_seed(1)
    layers = (nn.Linear(20, 40), nn.GELU(), nn.Dropout(0.1), nn.Linear(40, 4))
    return dg.gate_(nn.Sequential(*layers), staged_config(decide, (15, 25)))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "three layers": staged_mlp,
    "one hidden layer": lambda: staged_mlp((20, 100, 10), stages=(0.2, 0.8)),
    "four stages": lambda: staged_mlp((20, 90, 70, 33, 7), stages=(0.2, 0.2, 0.3, 0.3), activation="silu"),
    "entropy": lambda: staged_mlp(decide="entropy"),
    "head": lambda: staged_mlp(decide="head"),
    "normalize": lambda: staged_mlp(normalize=dg.nn.Normalize(0.3, 2.0), activation="tanh"),
    "sequential": lambda: sequential("margin"),
    "sequential with heads": lambda: sequential("head"),
    "layer norm": lambda: dg.gate_(
        nn.Sequential(nn.LayerNorm(20), nn.Linear(20, 40), nn.ReLU(), nn.Linear(40, 4)), staged_config()
    ),
    "batch norm": lambda: dg.gate_(
        nn.Sequential(nn.BatchNorm1d(20), nn.Linear(20, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 4)),
        staged_config(),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_compiled_model_gives_the_outputs_of_the_model(name: str, tmp_path: Path) -> None:
    x = torch.randn(300, 20).relu()
    model = MODELS[name]()
    model.train()(x)  # a batch norm learns means and variances
    assert len(set(cut_in_half_(model, x).tolist())) == gate_of(model).count
    compiled = compile_quickly(model, x)
    assert_same(compiled, model, x)
    assert isinstance(compiled.body, Chain), "one chain and nothing else"
    compiled.save(tmp_path / "compiled.safetensors")
    loaded = CompiledModel.load(tmp_path / "compiled.safetensors")
    assert loaded.plan == compiled.plan
    assert all(torch.equal(loaded(x[:rows]), compiled(x[:rows])) for rows in BATCHES)


@pytest.mark.parametrize("decide", ["margin", "entropy", "head"])
def test_every_candidate_gives_the_outputs_of_the_model(decide: str, tmp_path: Path) -> None:
    model, x = staged_mlp(decide=decide, normalize=dg.nn.Normalize(0.3, 2.0)), torch.randn(300, 20).relu()
    cut_in_half_(model, x)
    compiled = compile_quickly(model, x)
    candidates = candidates_of(model, x)
    tries = [packed([LayerLayout(layout)] * 9) for layout in ("panels", "rows", "vectors", "csr", "columns")]
    tries.append(packed([LayerLayout("panels", skip_zeros=True)] * 9))
    for candidate in (DENSE, *tries):
        chain = candidates.chain([candidates.build(candidate)], [0], [1])
        assert_same(chain, model, x)
        CompiledModel(chain, compiled.plan, compiled.nodes).save(tmp_path / "compiled.safetensors")
        loaded = CompiledModel.load(tmp_path / "compiled.safetensors")
        assert all(torch.equal(loaded(x[:rows]), chain(x[:rows])) for rows in BATCHES)


@pytest.mark.parametrize("cut", [math.inf, -math.inf])
def test_all_rows_may_stop_at_once_or_open_everything(cut: float) -> None:
    model, x = staged_mlp().eval(), torch.randn(300, 20)
    gate_of(model).cut.fill_(cut)
    assert set(stops(model, x).tolist()) == {0.0 if cut > 0 else 2.0}
    compiled = compile_quickly(model, x)
    with torch.no_grad():
        for rows in BATCHES:
            torch.testing.assert_close(compiled(x[:rows]), model(x[:rows]), rtol=1e-5, atol=1e-5)
    if cut < 0:  # the same network without its gate
        plain = dg.ungate_(model)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), plain(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("pattern", ["16x1", "unstructured"])
def test_masks_are_kept_and_sparse_layouts_used(pattern: str) -> None:
    model, x = staged_mlp((60, 96, 80, 5), stages=(0.4, 0.6)), torch.randn(300, 60)
    for layer in model.layers[:-1]:
        rows, columns = layer.weight.shape
        drawn = torch.rand(rows // 16 if pattern == "16x1" else rows, columns) < 0.2
        mask = drawn.repeat_interleave(16, 0) if pattern == "16x1" else drawn
        before = getattr(layer, "mask", None)
        put_mask_(layer, mask if before is None else mask & before, pattern)
        with torch.no_grad():
            layer.weight.mul_(layer.mask * 3)
    cut_in_half_(model, x)
    with torch.no_grad():  # as after an optimizer step: the layer removes it only when it runs
        model.layers[1].weight[0, -1] = 5.0
    compiled = compile_quickly(model, x)
    assert_same(compiled, model, x)
    layouts = candidates_of(model, x).layouts_to_try(zeros=0.0)
    want = "vectors" if pattern == "16x1" else "csr"
    assert [LayerLayout(want) in of_layer for of_layer in layouts] == [True, True, False] * 2


def test_the_plan_shows_a_line_for_each_layer_and_stage_and_how_many_rows_get_there() -> None:
    model, x = staged_mlp((20, 48, 48, 5), stages=(16, 32), decide="head"), torch.randn(200, 20)
    stopped = cut_in_half_(model, x)
    opened = float((stopped == 1).double().mean())
    assert opened == 0.5
    plan = compile_quickly(model, x).plan
    (regimes,) = plan.chains
    for regime in regimes:
        found = {layer.name: (layer.shape, layer.macs) for layer in regime.layers}
        assert found == {
            "layers.0, stage 1": ((16, 20), 320.0),
            "layers.1, stage 1": ((16, 16), 256.0),
            "layers.2, stage 1": ((5, 16), 80.0 + 16.0),
            "layers.0, stage 2": ((32, 20), 640.0 * opened),
            "layers.1, stage 2": ((32, 48), 1536.0 * opened),
            "layers.2, stage 2": ((5, 32), 160.0 * opened),
        }
        assert sum(layer.chosen_us for layer in regime.layers) == pytest.approx(regime.times[regime.chosen])
        assert sum(layer.dense_us for layer in regime.layers) == pytest.approx(regime.dense_us)
        assert DENSE.name in regime.times
    assert plan.notes == [
        "stages from 'layers.0' to 'layers.2': rows of the example that open stage 1 100.0%, stage 2 50.0%"
    ]


def test_what_no_chain_can_do_stays_in_torch_with_a_note() -> None:
    x = torch.randn(64, 20)
    gated = dg.gate_(staged_mlp((20, 64, 64, 5), stages=(32, 32)), dg.GateConfig(block=16, net="linear"))
    cut_in_half_(gated, x)
    compiled = compile_quickly(gated, x)
    assert compiled.plan.chains == []
    assert ["it has stages and gates on units" in note for note in compiled.plan.notes] == [True]
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), gated(x))
    by_chance = staged_mlp(decide="random").eval()
    gate_of(by_chance).cut.fill_(0.5)
    compiled = compile_quickly(by_chance, x)
    assert compiled.plan.chains == []
    assert ["decided at random" in note for note in compiled.plan.notes] == [True]


def test_an_operation_between_the_layers_keeps_the_whole_stack_in_torch() -> None:
    x = torch.randn(64, 20)
    for between in (nn.BatchNorm1d(40), nn.Softplus()):
        stack = nn.Sequential(nn.Linear(20, 40), nn.ReLU(), between, nn.Linear(40, 4))
        site = dg.gating.sites.Site("3", ("0",), "0", 40)
        model = dg.gate_(stack, staged_config(), where=[site])
        cut_in_half_(model, x)
        compiled = compile_quickly(model, x)
        assert compiled.plan.chains == []
        assert compiled.plan.notes[0].startswith("'0', '3' in torch as before")
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), model(x))


def test_what_is_in_front_of_the_stack_runs_as_before(tmp_path: Path) -> None:
    torch.manual_seed(0)
    front = (nn.Linear(20, 30), nn.Softplus())
    model = nn.Sequential(*front, nn.Linear(30, 48), nn.ReLU(), nn.Linear(48, 5))
    dg.gate_(model, staged_config(), where="4")
    x = torch.randn(300, 20)
    cut_in_half_(model, x)
    compiled = compile_quickly(model, x)
    assert [len(chain[0].layers) for chain in compiled.plan.chains] == [1, 6]
    assert_same(compiled, model, x)
    compiled.save(tmp_path / "compiled.safetensors")
    loaded = CompiledModel.load(tmp_path / "compiled.safetensors", into=model)
    assert torch.equal(loaded(x), compiled(x))


def test_rows_at_a_cut_are_left_out_and_all_others_compared() -> None:
    model, x = staged_mlp(), torch.randn(64, 20)
    cut_in_half_(model, x)
    with torch.no_grad():
        gate_of(model).cut[0] = scores(model, x)[7, 0]
    compiled = compile_quickly(model, x, batches=(64,))
    assert compiled.plan.verification is not None
    assert 1 <= compiled.plan.verification.near_threshold < 8
    assert compiled.plan.verification.rows >= 120
    gate_of(model).cut.sub_(0.05)  # other rows open now: the plan computes something else
    with pytest.raises(ValueError, match="does not compute what the model computes"):
        verify_model(compiled, model, x, batches=(64,))


def test_a_plan_with_other_weights_in_a_late_stage_is_refused() -> None:
    model, x = staged_mlp(), torch.randn(64, 20)
    cut_in_half_(model, x)
    chain = candidates_of(model, x).chain(
        [candidates_of(model, x).build(packed([LayerLayout("panels")] * 9))], [0], [1]
    )
    assert verify_model(chain, model, x).error < 1e-5
    chain.implementations[0].weights[-300:].mul_(1.05)
    with pytest.raises(ValueError, match="does not compute what the model computes"):
        verify_model(chain, model, x)


def test_timing_uses_every_row_of_the_example() -> None:
    rows = torch.arange(300.0)[:, None].repeat(1, 3)
    for batch, count in ((1, 300), (7, 43), (256, 2)):
        xs = batches_of(rows, batch, whole=True)
        assert len(xs) == count
        assert all(len(part) == batch for part in xs)
        assert set(torch.cat(xs)[:, 0].tolist()) == set(range(300))
    seen: list[float] = []
    time_calls({"one": lambda x: seen.append(float(x[0, 0]))}, batches_of(rows, 1, whole=True), 0.5)
    assert set(seen) == set(range(300))


def test_timing_that_must_be_short_uses_rows_from_the_whole_range() -> None:
    seen: list[int] = []
    xs = [torch.tensor([[float(i)]]) for i in range(1000)]

    def slow(x: Tensor) -> None:
        seen.append(int(x))
        torch.ones(300, 300).sort()

    time_calls({"slow": slow}, xs, 0.1)
    assert len(set(seen)) < 1000
    assert max(seen) > 400


def test_a_compiled_model_shares_no_memory_with_the_model() -> None:
    model, x = staged_mlp(), torch.randn(64, 20)
    cut_in_half_(model, x)
    compiled = compile_quickly(model, x)
    want = compiled(x)
    with torch.no_grad():
        for tensor in (*model.parameters(), gate_of(model).cut):
            tensor.zero_()
    assert torch.equal(compiled(x), want)
    assert torch.equal(compiled(x.reshape(8, 8, 20)).flatten(0, 1), want)


def test_plain_rows_are_answered_directly_and_wrong_ones_get_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = staged_mlp(), torch.randn(64, 20)
    cut_in_half_(model, x)
    candidates = candidates_of(model, x)
    both = [candidates.build(candidate) for candidate in (packed([LayerLayout("panels")] * 9), DENSE)]
    chain = candidates.chain(both, [0, 1], [1, 64])
    answered: list[bool] = []
    direct = ops.chain.run_directly

    def recorded(rows: Tensor, given: ops.chain.Packed) -> Tensor | None:
        y = direct(rows, given)
        answered.append(y is not None)
        return y

    monkeypatch.setattr(ops.chain, "run_directly", recorded)
    want = chain(x[:5])
    assert torch.equal(chain(x[:5].reshape(5, 1, 20))[:, 0], want)
    chain(x)
    with pytest.raises(ValueError, match="expected float32 on the cpu with 20 features"):
        chain(x[:5].double())
    assert answered == [native.dispatcher_bypass() is not None, False, False]
