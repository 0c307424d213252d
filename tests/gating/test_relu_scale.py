"""Gates that multiply open blocks by how far their logit is above the threshold."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from dynamicgate.budget.penalties import pressed_usage
from dynamicgate.gating import Gate
from tests.gating.gates import static_gate

ABOVE_HALF = {"scale": "relu", "net": "linear"}


def gated_mlp(**config: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 4))
    return dg.gate_(model, GateConfig(block=8, open=0.5, **ABOVE_HALF, **config))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("tau", "theta"), [(1.0, 0.5), (0.3, 0.8), (2.0, 0.2)])
def test_open_blocks_are_multiplied_by_how_far_they_are_above_the_threshold(
    tau: float, theta: float, training: bool
) -> None:
    config = GateConfig(tau=tau, theta=theta, **ABOVE_HALF)
    gate = Gate(Site("out", ("in",), "in", 301), config, features=3).train(training)
    with torch.no_grad():
        gate.bias.copy_(torch.linspace(-12.0, 12.0, 301))
    decision = gate(torch.randn(7, 3))
    expected = (decision.logits.double() / tau - math.log(theta / (1 - theta))).clamp_min(0.0)
    torch.testing.assert_close(decision.scale.double(), expected, rtol=1e-5, atol=5e-6)
    assert float(decision.scale.detach().max()) > 2.0, "there is no largest factor"
    assert torch.equal(decision.open, (torch.sigmoid(decision.logits / gate.tau) > gate.theta).float())
    assert bool((decision.scale[decision.open == 0] == 0).all())


def test_the_gradient_is_that_of_the_function_and_closed_blocks_have_none() -> None:
    gate = static_gate(torch.tensor([-2.0, -0.5, 0.25, 3.0]), scale="relu", tau=0.5)
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0])
    decision = gate(torch.zeros(1, 3))
    (slope,) = torch.autograd.grad((decision.scale * weight).sum(), gate.bias, retain_graph=True)
    assert slope.tolist() == [0.0, 0.0, 6.0, 8.0]
    closing = pressed_usage(decision, gate, opening=False)
    (pressed,) = torch.autograd.grad((closing * weight).sum(), gate.bias, retain_graph=True)
    assert torch.equal(pressed, slope), "a budget that closes presses on the factor"
    assert torch.equal(closing, decision.open)
    (of_p,) = torch.autograd.grad(pressed_usage(decision, gate, opening=True).sum(), gate.bias)
    assert bool((of_p > 0).all()), "what opens blocks reaches closed ones"
    torch.testing.assert_close(decision.p[0], torch.sigmoid(torch.tensor([-4.0, -1.0, 0.5, 6.0])))


def test_a_block_that_was_open_keeps_its_slope_when_rounding_closes_it_in_a_recomputed_pass() -> None:
    gate = static_gate(torch.tensor([1e-7, 1.0]), scale="relu")
    net, shift = gate.net, [0.0]
    gate.net = Shifted(net, shift)

    def factor(x: Tensor) -> Tensor:
        return gate(x).scale.sum()

    with torch.enable_grad():
        total = checkpoint(factor, torch.zeros(1, 3, requires_grad=True), use_reentrant=False)
        shift[0] = -1e-6  # as another order of sums would
        total.backward()
    assert net.bias.grad is not None
    assert net.bias.grad.tolist() == [1.0, 1.0]


class Shifted(nn.Module):
    """A gate network with something added to its logits."""

    def __init__(self, net: nn.Module, shift: list[float]) -> None:
        super().__init__()
        self.inner, self.shift = net, shift

    @property
    def bias(self) -> Tensor:
        return self.inner.bias  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.shift[0]


def test_a_nan_shows() -> None:
    decision = static_gate(torch.tensor([1.0, torch.nan, -1.0]), scale="relu")(torch.zeros(1, 3))
    assert decision.scale.isnan().tolist() == [[False, True, False]]


def test_an_infinite_logit_gives_an_infinite_factor_and_a_finite_cost() -> None:
    gate = static_gate(torch.tensor([torch.inf, -torch.inf, 1.0]), scale="relu")
    decision = gate(torch.zeros(1, 3))
    assert decision.scale.tolist() == [[math.inf, 0.0, 1.0]]
    assert pressed_usage(decision, gate, opening=False).tolist() == [[1.0, 0.0, 1.0]]


@pytest.mark.parametrize(
    "wrong",
    [{"always_open": 1}, {"top_k": 2}, {"train": "gumbel"}, {"evaluate": "soft"}, {"soft_width": 1.0}],
    ids=str,
)
def test_what_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="scale"):
        GateConfig(**{**ABOVE_HALF, **wrong})
    with pytest.raises(ValueError, match="scale='relu'"):
        GateConfig(kind="router", scale="relu")


@pytest.mark.parametrize("wrong", [{"kind": "static", "open": 0.5}, {"kind": "static", "open": 0.3}, {"theta": 0.9}])
def test_gates_that_would_begin_closed_and_stay_so_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="never learn"):
        GateConfig(scale="relu", **wrong)


@pytest.mark.parametrize("target", [0.8, 0.95])
def test_a_budget_that_opens_gates_does_not_blow_up_their_factors(target: float) -> None:
    model, (x, y) = gated_mlp(), clouds()
    budget, optimizer = dg.Budget(target=target), torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(300):
        budget.apply_(model, step / 300)
        with dg.usage(model) as used:
            loss = nn.functional.cross_entropy(model(x), y)
        (loss + budget.step(used, step / 300)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert max(float(used[site].scale.detach().max()) for site in used) < 50.0
    assert loss.item() < 0.1
    assert budget.relative == pytest.approx(target, abs=0.05)


def test_the_floor_lifts_a_layer_that_is_shut() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    dg.gate_(model, GateConfig(block=8, open=0.5, **ABOVE_HALF))
    last = list(dg.named_gates(model).values())[-1]
    with torch.no_grad():
        last.bias.fill_(-1.0)
        last.net.weight.mul_(0.1)  # type: ignore[operator]
    (x, y), budget = clouds(), dg.Budget(target=0.4, floor=0.1, steer=0.0)  # no nudge, which opens all gates alike
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(300):
        budget.apply_(model, step / 300)
        with dg.usage(model) as used:
            loss = nn.functional.cross_entropy(model(x), y)
        assert step > 0 or float(used["4"].open.mean()) == 0.0
        (loss + budget.step(used, step / 300)).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert float(used["4"].open.mean()) >= 0.08
    assert loss.item() < 0.5


def test_a_budget_is_met_and_the_model_learns() -> None:
    model, (x, y) = gated_mlp(), clouds()
    dg.fit(model, (x, y), epochs=30, batch=64, budget=dg.Budget(target=0.4), seed=0)
    report = dg.measure(model, (x, y))
    assert report.macs["relative"] == pytest.approx(0.4, abs=0.02)
    assert report.accuracy is not None
    assert report.accuracy > 0.9


def test_the_compiled_plan_the_file_and_the_exported_model_are_the_same(tmp_path: Path) -> None:
    model, (x, _) = gated_mlp().eval(), clouds()
    expected = model.double()(x.double())
    model.float()
    fast = dg.compile(model, x[:64], batches=(1, 64), seconds=1.0)
    for rows in (1, 3, 64):
        torch.testing.assert_close(fast(x[:rows]).double(), expected[:rows], rtol=1e-5, atol=1e-5)
    dg.save(model, tmp_path / "model.safetensors")
    torch.testing.assert_close(dg.load(tmp_path / "model.safetensors")(x), model(x))


def test_a_static_gate_is_folded_into_the_plan() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 4))
    dg.gate_(model, GateConfig(kind="static", block=8, scale="relu"))
    with torch.no_grad():
        next(iter(dg.named_gates(model).values())).bias.copy_(torch.linspace(-2.0, 2.0, 12))
    x, _ = clouds()
    fast = dg.compile(model.eval(), x[:64], batches=(1, 64), seconds=1.0)
    torch.testing.assert_close(fast(x), model(x), rtol=1e-5, atol=1e-5)


def clouds() -> tuple[Tensor, Tensor]:
    """Four classes, each around a place of its own."""
    torch.manual_seed(1)
    y = torch.randint(4, (512,))
    return torch.randn(512, 20) * 0.5 + torch.randn(4, 20)[y] * 1.5, y
