"""A budget counts inputs of every shape with their own cost, and every model with its own counter."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import GateConfig
from dynamicgate.accounting import MacCounter
from dynamicgate.budget import GateBudget, OpenLoopBudget

WIDTH, FFN, BLOCK = 12, 24, 4


class Block(nn.Module):
    """Attention over a sequence, and a feed-forward layer for each position."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.scaled_dot_product_attention(x, x, x)
        return x + self.down(F.relu(self.up(x)))


def gated(width: int = WIDTH, seed: int = 0) -> Block:
    torch.manual_seed(seed)
    site = dg.Site("down", ("up",), "up", 2 * width)
    model = dg.gate_(Block(width), GateConfig(block=BLOCK, open=0.6), where=[site])
    torch.nn.init.uniform_(dg.named_gates(model)["down"].bias, -1.0, 1.0)
    return model


def by_hand(length: int, opened: float, width: int = WIDTH) -> float:
    """What a sample executes relative to dense."""
    fixed, ffn, gate = 2 * width * length**2, 4 * width**2 * length, length * width * 2 * width // BLOCK
    return (fixed + opened * ffn + gate) / (fixed + ffn)


def step(budget: dg.Budget, model: nn.Module, x: Tensor) -> float:
    """What the budget sees executed; and by `dg.usage`, how much was open."""
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(x)
    budget.step(used, 0.0)
    assert budget.relative is not None
    return float(used["down"].open.double().mean())


@pytest.mark.parametrize("passed", [False, True])
def test_every_length_is_counted_with_its_own_cost(passed: bool) -> None:
    model = gated().eval()
    budget = dg.Budget(target=0.9, counter=dg.count_macs(model, torch.randn(2, 5, WIDTH)) if passed else None)
    for length in (5, 3, 17, 5):
        opened = step(budget, model, torch.randn(4, length, WIDTH))
        assert budget.relative == pytest.approx(by_hand(length, opened), rel=1e-5)


def test_calibration_counts_each_batch_with_its_own_length() -> None:
    lengths, results = (3, 29), []
    for calibrate in ("budget", "function"):
        model = gated().eval()
        data = [torch.randn(64, n, WIDTH, generator=torch.Generator().manual_seed(n)) for n in lengths]
        budget = dg.Budget(target=0.8, on_collapse="ignore")
        step(budget, model, torch.randn(4, 7, WIDTH))
        achieved = budget.calibrate_(model, data) if calibrate == "budget" else dg.calibrate_(model, data, macs=0.8)
        executed = dense = 0.0
        for x in data:
            with torch.no_grad(), dg.usage(model) as used:
                model(x)
            n = x.shape[1]
            whole = 2 * WIDTH * n**2 + 4 * WIDTH**2 * n
            executed, dense = executed + by_hand(n, float(used["down"].open.mean())) * whole, dense + whole
        assert achieved == pytest.approx(executed / dense, rel=1e-5)
        assert achieved == pytest.approx(0.8, abs=0.01)
        results.append(achieved)
    assert results[0] == pytest.approx(results[1], abs=0.01)


def test_a_second_model_is_counted_itself_after_reset() -> None:
    budget = dg.Budget(target=0.9)
    for width, length in ((WIDTH, 5), (20, 11)):
        model = gated(width).eval()
        opened = step(budget, model, torch.randn(4, length, width))
        assert budget.relative == pytest.approx(by_hand(length, opened, width), rel=1e-5)
        budget.reset()
        assert budget.counter is None


@pytest.mark.parametrize("make", [lambda: dg.Budget(target=0.9), lambda: OpenLoopBudget()])
def test_a_second_model_is_refused_while_a_budget_steers_the_first(make: Callable[[], GateBudget]) -> None:
    """Lambda and the memory of the controller are those of the first."""
    budget, first, x = make(), gated().eval(), torch.randn(4, 5, WIDTH)

    def go_on(budget: GateBudget, model: nn.Module) -> None:
        budget.apply_(model, 0.5)
        with dg.usage(model) as used:
            model(x)
        budget.step(used, 0.5)

    go_on(budget, first)
    with pytest.raises(ValueError, match=r"one budget for each model, or call budget\.reset\(\)"):
        budget.apply_(gated(20), 0.5)
    go_on(budget, first)
    go_on(copy.deepcopy(budget), copy.deepcopy(first))
    budget.reset()
    go_on(budget, gated(seed=1))


def test_calibrating_another_model_counts_that_one() -> None:
    budget = dg.Budget(target=0.8, on_collapse="ignore")
    step(budget, gated().eval(), torch.randn(4, 5, WIDTH))
    other, x = gated(20).eval(), torch.randn(64, 11, 20)
    achieved = budget.calibrate_(other, x)
    with torch.no_grad(), dg.usage(other) as used:
        other(x)
    assert achieved == pytest.approx(by_hand(11, float(used["down"].open.mean()), 20), rel=1e-5)


def test_a_passed_counter_of_another_model_is_refused() -> None:
    first, second = gated(), gated()
    budget = dg.Budget(target=0.9, counter=dg.count_macs(first, torch.randn(2, 5, WIDTH)))
    budget.apply_(first, 0.0)
    with pytest.raises(ValueError, match="made for another model"):
        budget.apply_(second, 0.0)
    budget.reset()
    assert budget.counter is not None
    budget.apply_(first, 0.0)


def test_gates_that_were_put_on_again_are_counted_again() -> None:
    model, budget = gated().eval(), dg.Budget(target=0.9)
    step(budget, model, torch.randn(4, 5, WIDTH))
    dg.ungate_(model)
    dg.gate_(model, GateConfig(block=2, open=0.6), where=[dg.Site("down", ("up",), "up", 2 * WIDTH)])
    opened = step(budget, model, torch.randn(4, 5, WIDTH))
    fixed, ffn = 2 * WIDTH * 25, 4 * WIDTH**2 * 5
    assert budget.relative == pytest.approx((fixed + opened * ffn + 5 * WIDTH * WIDTH) / (fixed + ffn), rel=1e-5)


def test_watching_for_shapes_leaves_no_hook_behind() -> None:
    model = gated().eval()
    budget = dg.Budget(target=0.9)
    for length in (5, 3):
        step(budget, model, torch.randn(4, length, WIDTH))
        assert not model._forward_pre_hooks
    budget.apply_(model, 0.0)
    budget.apply_(model, 0.0)  # no forward pass between them
    assert len(model._forward_pre_hooks) == 1
    budget.reset()
    assert not model._forward_pre_hooks


def test_a_state_without_tokens_counts_the_next_inputs() -> None:
    model, budget = gated().eval(), dg.Budget(target=0.9)
    step(budget, model, torch.randn(4, 5, WIDTH))
    again = dg.Budget(target=0.9)
    again.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    again.counter = MacCounter(model, rows={"up": 5.0, "down": 5.0})  # as older checkpoints held it
    again.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    opened = step(again, model, torch.randn(4, 9, WIDTH))
    assert again.relative == pytest.approx(by_hand(9, opened), rel=1e-5)
