"""A budget that does not wait for what a step executed: it goes on with the step before."""

from __future__ import annotations

import copy

import pytest
import torch

import dynamicgate as dg
from dynamicgate.budget import Budget
from dynamicgate.budget.readings import LateReadings
from dynamicgate.gating.gate import GateConfig
from dynamicgate.nn import GatedMLP


def test_readings_come_one_call_later() -> None:
    late = LateReadings()
    assert late.values() is None
    assert late.exchange(torch.tensor([1.0, 2.0])) == [1.0, 2.0]
    assert late.exchange(torch.tensor([3.0, 4.0])) == [1.0, 2.0]
    assert late.exchange(torch.tensor([5.0, 6.0])) == [3.0, 4.0]
    assert late.exchange(torch.tensor([7.0])) == [7.0]  # a gate came or went: the old numbers belong to others
    again = LateReadings()
    again.restore(late.values())
    assert again.exchange(torch.tensor([8.0])) == copy.deepcopy(late).exchange(torch.tensor([8.0])) == [7.0]


def seen(wait: bool) -> list[float | None]:
    """What the controller of a budget sees over some steps, in which the gates are closed from outside."""
    torch.manual_seed(0)
    model = GatedMLP((8, 32, 4), GateConfig(kind="static", open=0.9))
    budget, x = Budget(target=0.5, warmup=0.0, anneal=0.5, steer=0.0, wait=wait), torch.randn(16, 8)
    found = []
    for step in range(6):
        budget.apply_(model, step / 6)
        with torch.no_grad():
            next(iter(dg.named_gates(model).values())).bias[: 5 * step] = -9.0
        with dg.usage(model) as used:
            model(x)
        budget.step(used, step / 6).backward()
        found.append(budget.relative)
    return found


def test_a_budget_that_does_not_wait_sees_what_the_step_before_executed() -> None:
    now, late = seen(True), seen(False)
    assert len(set(now)) == len(now)  # every step executes something else
    assert late == [now[0], *now[:-1]]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_gpu_is_not_waited_for() -> None:
    late = LateReadings()
    late.exchange(torch.ones(2, device="cuda"))
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # about a second
    busy.record()
    assert late.exchange(torch.full((2,), 3.0, device="cuda")) == [1.0, 1.0]
    assert not busy.query()
    assert late.values() == [3.0, 3.0]
