"""Gates whose logits lie close together are held to the budget step by step, not on average over an oscillation."""

from __future__ import annotations

import copy
import math
from statistics import fmean

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.budget import controller
from dynamicgate.budget.controller import OVERSHOT, Controller
from dynamicgate.budget.nudging import HALVINGS, held_back, opened_after
from tests.budget.loop import task, train

STEPS, TARGET = 300, 0.3


def alike(kind: str = "dynamic") -> nn.Sequential:
    """A network whose gates start with equal logits."""
    torch.manual_seed(0)
    config = dg.GateConfig(net="low-rank", rank=1) if kind == "dynamic" else dg.GateConfig(kind="static")
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU(), nn.Linear(64, 4))
    dg.gate_(model, config)
    for gate in dg.named_gates(model).values():
        if gate.config.kind == "dynamic":
            nn.init.zeros_(gate.last.weight)  # type: ignore[arg-type]
    return model


def executed(model: nn.Module, budget: dg.Budget) -> list[float]:
    """What every step executed, with an optimizer that moves gates a tenth as fast as the rest."""
    gates = [p for name, p in model.named_parameters() if ".gate." in name]
    rest = [p for name, p in model.named_parameters() if ".gate." not in name]
    optimizer = torch.optim.Adam([{"params": rest, "lr": 1e-3}, {"params": gates, "lr": 1e-4}])
    seen: list[float] = []
    step = budget.step
    budget.step = lambda *args: (step(*args), seen.append(budget.relative))[0]  # type: ignore[method-assign]
    train(model, budget, STEPS, optimizer=optimizer)  # type: ignore[arg-type]
    return seen


def missed(late: list[float]) -> float:
    """Root of the mean square of what steps executed above or below the target."""
    return math.sqrt(fmean((one - TARGET) ** 2 for one in late))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_every_step_is_near_the_target_once_the_budget_has_come_down(kind: str) -> None:
    late = executed(alike(kind), dg.Budget(target=TARGET, anneal=0.3))[STEPS // 2 :]
    assert missed(late) <= 0.03


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_a_loop_that_reads_one_step_late_looks_at_the_step_it_is_in(kind: str) -> None:
    late = executed(alike(kind), dg.Budget(target=TARGET, anneal=0.3, wait=False))[STEPS // 2 :]
    assert missed(late) <= 0.03


def test_without_looking_ahead_it_oscillates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(controller, "held_back", lambda nudge, error, change: nudge)
    late = executed(alike(), dg.Budget(target=TARGET, anneal=0.3))[STEPS // 2 :]
    assert missed(late) > 0.2  # so the test above can fail


def test_a_loop_that_never_overshoots_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((32, 64, 4), dg.GateConfig(net="low-rank", rank=2))
    other = copy.deepcopy(model)
    train(model, dg.Budget(target=0.5), 40)
    monkeypatch.setattr(controller, "held_back", lambda *args: pytest.fail("nothing overshot"))
    train(other, dg.Budget(target=0.5), 40)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_nudge_is_halved_until_it_does_not_overshoot() -> None:
    assert held_back(0.2, 0.5, lambda nudge: -nudge) == 0.2
    assert held_back(0.2, 0.16, lambda nudge: -nudge) == 0.2  # a little too far, but most of the error is gone
    assert held_back(0.2, 0.1, lambda nudge: -nudge) == 0.1
    assert held_back(-0.2, -0.02, lambda nudge: -10.0 * nudge) == pytest.approx(-0.2 / 128)
    assert held_back(0.2, 0.3, lambda nudge: -0.4 if nudge > 0.05 else 0.0) == 0.2  # one block
    assert held_back(0.2, 0.3, lambda nudge: -0.5 if nudge > 0.05 else 0.0) == pytest.approx(0.05)
    assert held_back(0.2, 0.1, lambda nudge: -1.0) == 0.2 / 2**HALVINGS


def test_what_a_nudge_would_open_is_what_the_nudged_gates_open() -> None:
    model, (x, _) = dg.nn.GatedMLP((32, 24, 24, 4), dg.GateConfig(net="linear", always_open=3, tau=0.7)), task(64)
    gates = dg.named_gates(model)
    with dg.usage(model) as used:
        model(x)
    first = next(iter(gates))
    expected = opened_after(gates, used, lambda site: 0.4 if site == first else 0.0)
    with torch.no_grad():
        gates[first].bias.sub_(0.4)
    with dg.usage(model) as after:
        model(x)
    assert torch.equal(expected[first], after[first].open)
    others = [site for site in gates if site != first]
    assert all(torch.equal(expected[site], used[site].open) for site in others)
    assert not torch.equal(expected[first], used[first].open)


def test_an_overshoot_is_a_large_step_across_the_reference() -> None:
    settings = {"all_open": 1.0, "final_all_open": 1.0, "target": 0.5, "warmup": 0.0, "anneal": 1e-9, "gain": 20.0}
    for values, expected in [
        ((0.6, 0.55, 0.51, 0.5), False),
        ((0.5 + OVERSHOT / 3, 0.5 - OVERSHOT / 3), False),
        ((0.6, 0.4), True),
        ((0.4, 0.6, 0.5, 0.5), True),
    ]:
        loop = Controller(start=1.0)
        for value in values:
            loop.step(value, 0.5, integral=0.5, steer=0.3, **settings)
        assert loop.overshot is expected


def test_a_resumed_loop_goes_on_looking_ahead() -> None:
    whole, half = alike(), alike()
    budget, first = dg.Budget(target=TARGET, anneal=0.3), dg.Budget(target=TARGET, anneal=0.3)
    train(whole, budget, 120, optimizer=torch.optim.SGD(whole.parameters(), lr=1e-2))
    optimizer = torch.optim.SGD(half.parameters(), lr=1e-2)
    train(half, first, 120, stop=70, optimizer=optimizer)
    second = dg.Budget(target=TARGET, anneal=0.3)
    second.load_state_dict(first.state_dict())
    assert first.state_dict()["controller"]["overshot"]
    train(half, second, 120, start=70, optimizer=optimizer)
    for one, two in zip(whole.parameters(), half.parameters(), strict=True):
        assert torch.equal(one, two)


def test_a_checkpoint_from_before_goes_on() -> None:
    budget = dg.Budget(target=TARGET)
    state = budget.state_dict()
    del state["controller"]["overshot"], state["controller"]["error"]
    dg.Budget(target=TARGET).load_state_dict(state)
