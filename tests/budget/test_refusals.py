"""Budgets that cannot be met or make no sense are refused with a sentence that says what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamicgate as dg
from dynamicgate import Budget, GateConfig
from dynamicgate.budget import OpenLoopBudget
from dynamicgate.nn import GatedMLP
from tests.budget.loop import LOW_RANK, STATIC, task


@pytest.mark.parametrize("setting", [{"top_k": 2}, {"evaluate": "soft"}])
def test_a_target_for_gates_without_a_hard_threshold_is_refused(setting: dict[str, Any]) -> None:
    model = GatedMLP((32, 16, 4), GateConfig(**setting))
    with pytest.raises(ValueError, match=r"steers hard thresholds, but the gate at 'layers\.1'"):
        Budget(target=0.9).apply_(model, 0.0)


def test_a_target_under_the_fixed_costs_is_refused_and_the_gate_cost_named() -> None:
    model = GatedMLP((32, 64, 4), GateConfig(net="linear"))  # a full linear gate: 32 x 64 of 2304 MACs
    with pytest.raises(ValueError, match=r"a budget of 0.3 cannot be met: the gate networks alone cost 0.889 of dense"):
        first_step(Budget(target=0.3), model)
    first_step(Budget(target=0.3), GatedMLP((32, 64, 4), GateConfig(net="low-rank", rank=1, block=16)))


def test_a_target_is_checked_against_a_counter_that_is_given_as_well() -> None:
    model = GatedMLP((32, 64, 4), GateConfig(net="linear"))
    with pytest.raises(ValueError, match=r"a budget of 0.3 cannot be met"):
        first_step(Budget(target=0.3, counter=dg.count_macs(model, task(rows=4)[0])), model)


def first_step(budget: Budget, model: GatedMLP) -> Tensor:
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(task(rows=4)[0])
    return budget.step(used, 0.0)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"target": 0.0}, "expected 0 < target <= 1, received 0.0"),
        ({"target": 1.5}, "expected 0 < target <= 1, received 1.5"),
        ({"target": float("nan")}, "expected 0 < target <= 1, received nan"),
        ({"theta": 0.0}, "expected 0 < theta < 1, received 0.0"),
        ({"theta": 1.0}, "expected 0 < theta < 1, received 1.0"),
        ({"tau": 0.0}, "tau must be positive and finite, received 0.0"),
        ({"warmup": 0.6, "anneal": 0.5}, "received 0.6, 0.5"),
        ({"anneal": 0.0}, "0 < anneal"),
        ({"floor": 1.0}, "floor is an open rate: expected 0 <= floor < 1, received 1.0"),
        ({"on_collapse": "panic"}, "on_collapse must be report, act or ignore, received 'panic'"),
    ],
)
def test_a_budget_that_makes_no_sense_is_answered_with_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Budget(**{"target": 0.5, **setting})


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"form": "cubic"}, "form must be one of linear, cost, hinge.*received 'cubic'"),
        ({"form": "linear", "target_rate": 0.3}, "the penalty 'linear' has no target rate, received target_rate=0.3"),
    ],
)
def test_an_open_loop_that_makes_no_sense_is_answered_with_a_sentence(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        OpenLoopBudget(**setting)


def test_a_schedule_that_leaves_the_meaningful_range_is_refused_when_it_gets_there() -> None:
    model = GatedMLP((32, 16, 4), STATIC)
    budget = OpenLoopBudget(theta=lambda t: 0.5 + t)
    budget.apply_(model, 0.2)
    with pytest.raises(ValueError, match=r"expected 0 < theta < 1, received 1\.1"):
        budget.apply_(model, 0.6)
    with pytest.raises(ValueError, match="tau must be positive"):
        OpenLoopBudget(tau=lambda t: 1.0 - t).apply_(model, 1.0)


def test_the_penalty_before_apply_says_what_to_call() -> None:
    model = GatedMLP((32, 16, 4), STATIC)
    with dg.usage(model) as used:
        model(task(rows=4)[0])
    with pytest.raises(RuntimeError, match=r"call budget.apply_\(model, progress\) before the forward pass"):
        Budget(target=0.5).step(used, 0.0)


def test_an_empty_batch_is_refused_and_moves_nothing() -> None:
    model, budget = GatedMLP((32, 16, 4), LOW_RANK), Budget(target=0.5)
    for loop in (budget, OpenLoopBudget()):
        loop.apply_(model, 0.0)
        with dg.usage(model) as used:
            model(torch.randn(8, 32))
        loop.step(used, 0.0)
        before = json.dumps(loop.state_dict())
        loop.apply_(model, 0.5)
        with dg.usage(model) as used:
            model(torch.randn(0, 32))
        for call in (lambda: loop.step(used, 0.5), lambda: loop.penalty(used)):  # noqa: B023
            with pytest.raises(ValueError, match=r"the batch of this step has no rows.*leave empty batches out"):
                call()
        assert json.dumps(loop.state_dict()) == before


def test_a_loss_that_is_not_a_number_is_reported_as_such() -> None:
    model = GatedMLP((32, 16, 4), GateConfig(net="low-rank", rank=1))
    budget = Budget(target=0.5, on_collapse="ignore", floor=0.0)
    budget.apply_(model, 0.5)
    with dg.usage(model) as used:
        model(torch.full((4, 32), float("nan")))
    with pytest.raises(ValueError, match="not finite: has the loss become NaN"):
        budget.step(used, 0.5)
