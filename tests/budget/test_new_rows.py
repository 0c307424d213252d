"""Layers that are open for training rows and closed for new ones."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.budget.new_rows import Opened, closed_to_new_rows, opened_by, restore_layers_


def gated(block: int = 1) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 3))
    return dg.gate_(model, dg.GateConfig(net="linear", block=block)).eval()


def close_(model: nn.Module, name: str, by: float = 10.0) -> None:
    with torch.no_grad():
        dg.named_gates(model)[name].bias.sub_(by)


def test_what_rows_open_is_counted_by_rate_and_by_rows_that_open_nothing() -> None:
    model, x = gated(), torch.randn(64, 8)
    close_(model, "4")
    found = opened_by(model, [x[:40], x[40:]])
    assert found["4"] == Opened(0.0, 1.0)
    assert found["2"].rate > 0.5
    with dg.usage(model) as used:
        model(x)
    assert found["2"].rate == pytest.approx(float(used["2"].open.mean()))


def test_a_closed_layer_opens_again_as_far_as_in_training_and_others_stay() -> None:
    model, x = gated(), torch.randn(512, 8)
    before = opened_by(model, [x])
    close_(model, "4")
    bias = dg.named_gates(model)["2"].bias.clone()
    assert restore_layers_(model, [x], {"2": before["2"].rate, "4": 0.3}, floor=0.02) == ["4"]
    assert opened_by(model, [x])["4"].rate == pytest.approx(0.3, abs=0.01)
    assert torch.equal(bias, dg.named_gates(model)["2"].bias)


def test_a_layer_that_training_had_nearly_closed_is_held_to_the_floor() -> None:
    model, x = gated(), torch.randn(512, 8)
    close_(model, "4")
    restore_layers_(model, [x], {"4": 0.0}, floor=0.05)
    assert opened_by(model, [x])["4"].rate == pytest.approx(0.05, abs=0.01)


def test_layers_that_stay_closed_are_named() -> None:
    opened = {"a": Opened(0.3, 0.0), "b": Opened(0.001, 0.9), "c": Opened(0.1, 0.7)}
    found = closed_to_new_rows(opened, floor=0.02)
    assert [(collapse.name, collapse.site) for collapse in found] == [("closed-to-new-rows", s) for s in "bc"]
    assert "70% of them nothing" in str(found[1])


@pytest.mark.parametrize(("on_collapse", "reported"), [("act", 0), ("report", 1), ("ignore", 0)])
def test_calibration_opens_a_closed_layer_by_default_and_only_reports_it_if_asked(
    on_collapse: Literal["act", "report", "ignore"], reported: int
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 3))
    dg.gate_(model, dg.GateConfig(net="linear", block=8))
    seen, unseen = torch.randn(512, 64), torch.randn(512, 64)
    budget = dg.Budget(target=0.6, on_collapse=on_collapse)
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(seen)
    budget.step(used, 0.0)  # training saw both layers open
    close_(model, "4", by=20.0)
    assert budget.calibrate_(model, [seen, unseen], unseen=[unseen]) == pytest.approx(0.6, abs=0.01)
    assert len(budget.collapses) == reported
    assert (opened_by(model, [unseen])["4"].rate > 0.2) == (on_collapse == "act")


def test_routers_cannot_close_and_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    dg.gate_(model, dg.GateConfig(kind="router", block=8))
    assert opened_by(model, [torch.randn(16, 8)]) == {}
    assert restore_layers_(model, [torch.randn(16, 8)], {"2": 1.0}, floor=0.5) == []
