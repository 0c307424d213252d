"""A budget on a Hugging Face model: batches of all lengths, padded in any way, and after a checkpoint."""

from __future__ import annotations

import json

import pytest
import torch

import dynamicgate as dg
from dynamicgate import hf
from dynamicgate.budget import executed_relative
from tests.hf.test_counting import build, by_hand, ragged
from tests.hf.tiny import gated, tiny_llama, tokens

LENGTHS = [(4, 4), (9, 2, 1), (17,)]


def seen(budget: dg.Budget, model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> tuple[float, dg.usage]:
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(**batch)
    budget.step(used, 0.0)
    assert budget.relative is not None
    return budget.relative, used


@pytest.mark.parametrize("padding", ["right", "left"])
@pytest.mark.parametrize("kind", ["half", "heads"])
def test_a_budget_counts_every_length_by_tokens_and_pairs(kind: str, padding: str) -> None:
    model, budget = build("llama", kind), dg.Budget(target=0.9)
    for lengths in LENGTHS:
        relative, used = seen(budget, model, ragged(lengths, padding)[0])
        dense, executed = by_hand(model, lengths, used, causal=True)
        assert relative == pytest.approx(executed / dense, rel=1e-6)
    (batch,) = ragged((3, 11), padding)
    budget.apply_(model, 0.5)
    budget.lambda_ = 1.0
    with dg.usage(model) as used:
        model(**batch)
    dense, executed = by_hand(model, (3, 11), used, causal=True)
    assert float(budget.penalty(used).detach()) == pytest.approx(executed / dense, rel=1e-6)


def test_calibration_does_not_depend_on_what_the_budget_saw_first() -> None:
    data = [ragged(lengths, "right")[0] for lengths in [(19, 30), (25, 31)]]
    found = []
    for first in (3, 40):
        model = gated(tiny_llama()).eval()
        budget = dg.Budget(target=0.75, on_collapse="ignore")
        seen(budget, model, {"input_ids": tokens(2, first)})
        found.append(budget.calibrate_(model, data))
        assert hf.measure(model, data).relative == pytest.approx(found[-1], rel=1e-6)
        assert executed_relative(model, dg.count_macs(model, data[0]), data) == pytest.approx(found[-1], rel=1e-6)
    assert found[0] == found[1]


def test_a_checkpoint_holds_a_counter_for_all_lengths() -> None:
    model = build("llama", "heads")
    budget = dg.Budget(target=0.9)
    seen(budget, model, {"input_ids": tokens(2, 4)})
    again = dg.Budget(target=0.9)
    again.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    again.apply_(model, 0.0)
    assert again.counter is not None
    assert not model._forward_pre_hooks, "nothing is counted anew"
    (batch,) = ragged((3, 11), "right")
    relative, used = seen(again, model, batch)
    dense, executed = by_hand(model, (3, 11), used, causal=True)
    assert relative == pytest.approx(executed / dense, rel=1e-6)
