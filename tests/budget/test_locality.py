"""Blocks that rows read together: groups, the fraction that is read, and what the penalty pushes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import dynamicgate as dg
from dynamicgate.budget import Budget
from dynamicgate.budget.locality import locality, neighbours, read_by, same_place
from dynamicgate.distributed import RowMeans
from dynamicgate.gating.gate import Decision, GateConfig
from dynamicgate.nn import GatedMLP


def decision(open_: Tensor, p: Tensor) -> Decision:
    fields: dict[str, Any] = dict.fromkeys(Decision._fields)
    return Decision(**{**fields, "open": open_, "p": p})


def test_groups_are_neighbours_or_rows_at_the_same_place() -> None:
    rows = torch.arange(4 * 6).view(4, 6, 1)  # four sequences of six tokens, one block
    assert neighbours(rows, 3)[:3, :, 0].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert neighbours(rows, 4).shape == (4, 4, 1)  # the last two of each sequence are left over
    assert same_place(rows, 2)[:2, :, 0].tolist() == [[0, 6], [1, 7]]
    assert same_place(rows, 16).shape == (6, 4, 1)
    assert neighbours(torch.arange(10).view(10, 1), 5).shape == (2, 5, 1)


def test_what_is_read_is_the_union() -> None:
    opened = torch.tensor([[[1.0, 0, 0, 0], [0, 1, 0, 0]], [[1, 0, 0, 0], [1, 0, 0, 0]]])
    assert read_by(opened).item() == pytest.approx((2 / 4 + 1 / 4) / 2)


def test_the_value_is_what_is_read_and_the_gradient_that_of_one_more_block() -> None:
    torch.manual_seed(0)
    opened = (torch.rand(4, 6, 5) < 0.3).float()
    p = torch.rand(4, 6, 5, requires_grad=True)
    value = locality(decision(opened, p), 2, RowMeans(p.flatten(0, -2)))
    expected = (read_by(neighbours(opened, 2)) + read_by(same_place(opened, 2))) / 2
    assert value.item() == pytest.approx(expected.item())
    value.backward()
    assert p.grad is not None
    for index in ((0, 0, 0), (1, 3, 2), (3, 5, 4)):  # the gradient of p is what the block costs if it is open or not
        read = []
        for state in (1.0, 0.0):
            changed = opened.clone()
            changed[index] = state
            read.append((read_by(neighbours(changed, 2)) + read_by(same_place(changed, 2))) / 2)
        assert p.grad[index].item() == pytest.approx((read[0] - read[1]).item(), abs=1e-6)


def trained(weight: float) -> float:
    """What 8 neighbours read after training on rows that come in runs of 8 of the same kind."""
    torch.manual_seed(0)
    model = GatedMLP((16, 64, 4), GateConfig(net="linear", block=8, open=0.6))
    kinds = torch.randint(0, 4, (32,)).repeat_interleave(8)
    budget = Budget(target=0.5, warmup=0.0, anneal=0.3, locality=weight, together=8)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    steps = 150
    for step in range(steps):
        x = torch.randn(256, 16) + 2.0 * torch.eye(16)[kinds]
        budget.apply_(model, step / steps)
        with dg.usage(model) as used:
            loss = torch.nn.functional.cross_entropy(model(x), kinds)
        optimizer.zero_grad()
        (loss + budget.step(used, step / steps)).backward()
        optimizer.step()
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
    (one,) = used.values()
    assert one.open.mean() > 0.1
    return float(read_by(neighbours(one.open, 8)) / one.open.mean())


def test_rows_that_run_together_learn_to_share_blocks() -> None:
    assert trained(3.0) < 0.9 * trained(0.0)


@pytest.mark.parametrize(
    ("settings", "says"), [({"locality": -1.0}, "locality is the weight"), ({"together": 1}, "together is how many")]
)
def test_senseless_settings_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Budget(target=0.5, **settings)
