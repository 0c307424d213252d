"""The feed-forward layer: skipping closed blocks gives the same as multiplying them by zero.

On the CPU its op runs the reference implementation, so everything but the kernels is tested here in float64.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.nn import ffn as layers
from dynamicgate.ops.ffn import tune
from tests.interpreted import run_interpreted_tests
from tests.training.easy import blobs

GATES = {
    "hard": dg.GateConfig(block=32, open=0.6),
    "low rank": dg.GateConfig(block=32, net="low-rank", rank=3, theta=0.4, tau=0.7),
    "static": dg.GateConfig(kind="static", block=32),
    "scaled": dg.GateConfig(block=32, scale=True, open=0.6),
    "top-k": dg.GateConfig(block=32, top_k=2),
    "bernoulli": dg.GateConfig(block=32, train="bernoulli", open=0.6),
    "gumbel": dg.GateConfig(block=32, train="gumbel", open=0.6),
    "ragged": dg.GateConfig(block=40, open=0.6),
    "relu": dg.GateConfig(block=32, scale="relu", open=0.6),
    "router": dg.GateConfig(kind="router", block=32, top_k=2),
    "full experts": dg.GateConfig(kind="router", block=32, top_k=2, capacity=0.6),
}
SHAPES = {
    "relu": {"activation": "relu"},
    "gelu without biases": {"activation": "gelu", "bias": False},
    "swiglu": {"activation": "silu", "value": True, "outputs": 5},
}


def gated(config: dg.GateConfig, **options: Any) -> dg.nn.FFN:
    """A layer whose gate is open for some rows and closed for others."""
    torch.manual_seed(1)
    layer = dg.nn.FFN(12, 96, **options)
    dg.gate_(layer, config, where="down")
    with torch.no_grad():
        for name, parameter in layer.down.gate.net.named_parameters():
            parameter.add_(torch.randn_like(parameter) * (0.3 if name.endswith("bias") else 0.8))
    return layer


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[int]]:
    """Let the CPU skip closed blocks, through the reference; the returned list gets an entry for each call."""

    def start() -> list[int]:
        calls: list[int] = []

        def counted(*args: Any, **options: Any) -> Tensor:
            calls.append(1)
            return original(*args, **options)

        original = layers.gated_ffn
        monkeypatch.setattr(layers, "KERNEL_DEVICES", ("cpu",))
        monkeypatch.setattr(tune, "LEAST_WORK", 0)
        monkeypatch.setattr(tune, "DTYPES", (torch.float64, torch.float32))
        monkeypatch.setattr(layers, "gated_ffn", counted)
        return calls

    return start


class Detached(nn.Module):
    """A gate network through which no gradient reaches its input."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.detach())


def outputs_and_gradients(model: nn.Module, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(3)
    y = model(x)
    (y * torch.randn_like(y)).sum().backward()
    found = {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}
    return y.detach(), found | {"x": x.grad}


def assert_gradients_close(mine: dict[str, Tensor], theirs: dict[str, Tensor], rtol: float = 1e-6) -> None:
    for name, gradient in theirs.items():
        torch.testing.assert_close(mine[name], gradient, rtol=rtol, atol=rtol, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("gate", GATES)
def test_skipping_is_multiplying_by_zero_in_outputs_and_gradients(
    gate: str, shape: str, skipping: Callable[[], list[int]]
) -> None:
    layer = gated(GATES[gate], **SHAPES[shape]).double()
    x = torch.randn(3, 11, 12, dtype=torch.float64)
    y, gradients = outputs_and_gradients(layer, x)
    calls = skipping()
    skipped, mine = outputs_and_gradients(layer, x)
    assert calls == [1]
    torch.testing.assert_close(skipped, y, rtol=1e-12, atol=1e-12)
    assert_gradients_close(mine, gradients)  # the gate itself computes in float32
    assert any(bool(mine[name].any()) for name in mine if ".gate." in name)


@pytest.mark.parametrize("gate", [*GATES, "softmax"])
def test_a_nan_in_a_row_shows_though_blocks_are_skipped(gate: str, skipping: Callable[[], list[int]]) -> None:
    config = dg.GateConfig(block=32, scale="softmax") if gate == "softmax" else GATES[gate]
    layer = gated(config).eval()
    x = torch.randn(7, 12)
    x[4, 3] = torch.nan
    calls = skipping()
    y = layer(x)
    assert calls == [1]
    assert y.isnan().all(1).tolist() == y.isnan().any(1).tolist() == [row == 4 for row in range(7)]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_sparse_gate_gradient_differs_only_in_what_flows_through_the_gate(
    shape: str, skipping: Callable[[], list[int]]
) -> None:
    dense, sparse = (gated(GATES["hard"], **SHAPES[shape], gate_gradient=g).double() for g in ("dense", "sparse"))
    x = torch.randn(20, 12, dtype=torch.float64)
    skipping()
    (y, theirs), (same, mine) = (outputs_and_gradients(layer, x) for layer in (dense, sparse))
    assert torch.equal(y, same)
    other = {name for name in theirs if not torch.allclose(mine[name], theirs[name], rtol=1e-9, atol=1e-12)}
    assert other == {"down.gate.net.weight", "down.gate.net.bias", "x"}, "the gate reads x"
    for layer in (dense, sparse):
        layer.down.gate.requires_grad_(False)
        layer.down.gate.net = Detached(layer.down.gate.net)
    (_, theirs), (_, mine) = (outputs_and_gradients(layer, x) for layer in (dense, sparse))
    assert_gradients_close(mine, theirs, 1e-12)


def test_with_the_sparse_gate_gradient_a_block_that_is_always_closed_gets_none(
    skipping: Callable[[], list[int]],
) -> None:
    for gate_gradient, expected in (("dense", True), ("sparse", False)):
        layer = gated(GATES["hard"], gate_gradient=gate_gradient)
        with torch.no_grad():
            layer.down.gate.net.bias[1] = -50.0
        skipping()
        _, found = outputs_and_gradients(layer, torch.randn(20, 12))
        assert bool(found["down.gate.net.bias"][0])
        # at p = sigmoid(-50) the dense gradient is tiny but not 0; the sparse one is exactly 0
        assert bool(found["down.gate.net.bias"][1]) is expected


CANNOT: dict[str, tuple[dg.GateConfig, dict[str, Any]]] = {
    "soft gates": (dg.GateConfig(block=32, train="soft"), {}),
    "concrete gates": (dg.GateConfig(block=32, train="concrete"), {}),
    "small blocks": (dg.GateConfig(block=16), {}),
    "a gate that reads the units it closes": (dg.GateConfig(block=32, reads="same"), {}),
    "an activation the kernels do not know": (dg.GateConfig(block=32), {"activation": "tanh"}),
    "kernels that are not wanted": (dg.GateConfig(block=32), {"kernels": "never"}),
}


@pytest.mark.parametrize("why", CANNOT)
def test_everything_is_computed_with(why: str, skipping: Callable[[], list[int]]) -> None:
    config, options = CANNOT[why]
    layer = gated(config, **options)
    x = torch.randn(9, 12)
    torch.manual_seed(0)
    y = layer(x)
    calls = skipping()
    torch.manual_seed(0)
    assert torch.equal(layer(x), y)
    assert calls == []


def test_everything_is_computed_without_a_gate_and_where_a_layer_has_other_hooks(
    skipping: Callable[[], list[int]],
) -> None:
    x = torch.randn(9, 12)
    layer = dg.nn.FFN(12, 96, activation="silu", value=True)
    dense = layer.down(F.silu(layer.up(x)) * layer.value(x))
    calls = skipping()
    assert torch.equal(layer(x), dense)
    dg.gate_(layer, GATES["hard"], where="down")
    seen: list[tuple[int, ...]] = []
    handle = layer.value.register_forward_hook(lambda _m, _a, out: seen.append(tuple(out.shape)))
    hooked = layer(x)
    assert seen == [(9, 96)]
    assert calls == []
    handle.remove()
    torch.testing.assert_close(layer(x), hooked)
    assert calls == [1]
    dg.gate_(layer, dg.GateConfig(kind="static"), where="up")
    layer(x)
    assert calls == [1], "a gate on the features it reads has hooks of its own"


def test_a_layer_too_small_for_the_kernels_to_pay_is_computed_in_full_unless_told_otherwise(
    skipping: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = gated(GATES["hard"]), torch.randn(7, 12)
    calls = skipping()
    monkeypatch.setattr(tune, "LEAST_WORK", 7 * 12 * 96 + 1)
    layer(x)
    assert calls == []
    layer.kernels = "always"
    layer(x)
    assert calls == [1]
    layer.kernels = "auto"
    layer(torch.randn(8, 12))
    assert calls == [1, 1]


def test_a_gate_that_reads_another_layer_is_left_to_its_hooks(skipping: Callable[[], list[int]]) -> None:
    model = nn.Sequential(nn.Linear(12, 12), dg.nn.FFN(12, 96))
    dg.gate_(model, GATES["hard"], where=[dg.Site("1.down", ("1.up",), "0", 96)])
    x = torch.randn(9, 12)
    y = model(x)
    calls = skipping()
    assert torch.equal(model(x), y)
    assert calls == []


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_usage_penalty_and_budget_see_the_gate(mode: str, skipping: Callable[[], list[int]]) -> None:
    model = nn.Sequential(gated(GATES["hard"], outputs=3)).train(mode == "train")
    x = torch.randn(40, 12)
    found = []
    for _ in range(2):
        budget = dg.Budget(target=0.5)
        budget.apply_(model, 0.3)
        with dg.usage(model) as used:
            model(x)
        found.append((used["0.down"], budget.step(used, 0.3), budget.relative))
        calls = skipping()
    with dg.usage(model) as used:
        model(x)
    assert calls == [1]
    for mine, theirs in zip(used["0.down"], found[0][0], strict=True):
        assert torch.equal(mine, theirs)
    assert found[1][1:] == found[0][1:]
    open_loop = dg.budget.OpenLoopBudget(form="linear", weight=1.0)
    open_loop.apply_(model, 0.3)
    open_loop.step(used, 0.3).backward()
    assert model[0].down.gate.net.bias.grad.any()


def test_it_costs_what_its_layers_cost(skipping: Callable[[], list[int]]) -> None:
    model = nn.Sequential(gated(GATES["hard"], **SHAPES["swiglu"]))
    assert dg.named_gates(model)["0.down"].site_at("0.down") == dg.Site("0.down", ("0.up", "0.value"), "0.up", 96)
    x = torch.randn(50, 12)
    here = dg.measure(model, x)
    calls = skipping()
    there = dg.measure(model, x)
    assert calls == [], "counting needs the layers to run"
    with dg.usage(model.eval()) as used:
        model(x)
    assert calls == [1]
    opened = float(used["0.down"].open.sum(-1).mean()) * 32
    assert there.macs == here.macs
    assert there.macs["executed"] == pytest.approx(opened * (12 + 12 + 5) + 12 * 3)
    assert dg.accounting.MacCounter.for_mlp(model).dense == 96 * (12 + 12 + 5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_saved_layer_comes_back_bit_for_bit(shape: str, tmp_path: Path) -> None:
    layer = gated(GATES["hard"], **SHAPES[shape], gate_gradient="sparse", kernels="never")
    model = nn.Sequential(layer, nn.ReLU()).eval()
    dg.save(model, tmp_path / "model.safetensors")
    back = dg.load(tmp_path / "model.safetensors")
    x = torch.randn(20, 12)
    assert torch.equal(back(x), model(x))
    assert str(back) == str(model)
    assert {name.replace(".gate.net", "") for name in back.state_dict()} >= {"0.up.weight", "0.down.weight"}


def test_a_gate_renames_no_parameter_and_can_be_removed() -> None:
    layer = dg.nn.FFN(12, 96, value=True)
    before = layer.state_dict()
    dg.gate_(layer, GATES["hard"], where="down")
    assert {name for name in layer.state_dict() if ".gate." not in name} == set(before)
    dg.ungate_(layer)
    assert list(layer.state_dict()) == list(before)


@pytest.mark.parametrize("shape", SHAPES)
def test_torch_compile_sees_one_op_and_no_break(shape: str, skipping: Callable[[], list[int]]) -> None:
    torch.compiler.reset()
    skipping()
    layer = gated(GATES["hard"], **SHAPES[shape])
    x = torch.randn(10, 12)
    y, gradients = outputs_and_gradients(layer, x)
    graphs: list[torch.fx.GraphModule] = []

    def capture(module: torch.fx.GraphModule, _inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled = torch.compile(layer, fullgraph=True, backend=capture)
    out, mine = outputs_and_gradients(compiled, x)  # type: ignore[arg-type]
    torch.testing.assert_close(out, y)
    mine = {name.removeprefix("_orig_mod."): gradient for name, gradient in mine.items()}
    assert_gradients_close(mine, gradients, 1e-5)
    targets = [str(node.target) for node in graphs[0].graph.nodes]
    assert sum("dynamicgate.ffn" in target for target in targets) == 1
    assert len(graphs) == 1


def test_a_copy_is_gated_by_its_own_gate(skipping: Callable[[], list[int]]) -> None:
    layer = gated(GATES["hard"])
    copied = copy.deepcopy(layer)
    x = torch.randn(9, 12)
    before = layer(x)
    calls = skipping()
    with torch.no_grad():
        copied.down.gate.net.bias.fill_(-50.0)
    torch.testing.assert_close(copied(x), copied.down.bias.expand(9, -1))
    torch.testing.assert_close(layer(x), before)
    assert calls == [1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("gate_gradient", ["dense", "sparse"])
def test_fit_holds_the_budget(gate_gradient: Any, skipping: Callable[[], list[int]]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(dg.nn.FFN(8, 128, 16, gate_gradient=gate_gradient), nn.ReLU(), nn.Linear(16, 3))
    dg.gate_(model, dg.GateConfig(block=32), where="0.down")
    calls = skipping()
    dg.fit(model, blobs(), budget=dg.Budget(target=0.5), epochs=12, batch=24, lr=1e-2, show=False)
    assert len(calls) > 50
    found = dg.measure(model, blobs(seed=1))
    assert found.quality["accuracy"] > 0.95
    assert abs(found.macs["relative"] - 0.5) <= 0.05


@pytest.mark.parametrize("fallback", ["identity", "bias"])
@pytest.mark.parametrize(("top_k", "capacity"), [(1, None), (2, None), (1, 0.7), (2, 0.5)])
def test_skipping_experts_is_multiplying_them_by_zero(
    top_k: int, capacity: float | None, fallback: Any, skipping: Callable[[], list[int]]
) -> None:
    switch = dg.nn.Switch(8, 4, 32, top_k, capacity, fallback=fallback, activation="gelu")
    nn.init.normal_(switch.down.gate.net.weight)
    switch = switch.double()
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    y, gradients = outputs_and_gradients(switch, x)
    calls = skipping()
    mine, found = outputs_and_gradients(switch, x)
    assert calls == [1]
    torch.testing.assert_close(mine, y, rtol=1e-12, atol=1e-12)
    assert_gradients_close(found, gradients)
    switch.kernels = "never"
    assert torch.equal(outputs_and_gradients(switch, x)[0], y)
    assert calls == [1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"width": 0}, "features, width and outputs must be 1 or more, received 4, 0 and 4"),
        ({"activation": "step"}, "activation must be one of relu, gelu, silu, tanh, received 'step'"),
        ({"gate_gradient": "exact"}, "gate_gradient must be one of dense, sparse, sampled, auto, received 'exact'"),
        ({"kernels": "often"}, "kernels must be one of auto, always, never, received 'often'"),
    ],
)
def test_a_layer_that_makes_no_sense_is_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        dg.nn.FFN(**{"features": 4, "width": 8, **arguments})


# --- the kernels


@pytest.mark.slow
def test_the_layer_matches_the_dense_one_on_interpreted_kernels() -> None:
    assert " passed" in run_interpreted_tests(Path(__file__).parent / "interpreted_ffn.py")
