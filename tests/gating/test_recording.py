"""Evidence of a forward pass: there inside the `with`, gone outside."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamicgate as dg


def gated() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2))
    dg.gate_(model, dg.GateConfig(block=3))
    return model


def test_usage_holds_p_and_g_of_every_site_in_the_order_of_the_model() -> None:
    model = gated()
    with dg.usage(model) as used:
        model(torch.randn(5, 4))
    assert list(used) == ["2", "4"]
    assert len(used) == 2
    assert used["2"].p.shape == used["2"].open.shape == (5, 3)
    assert used["4"].p.shape == (5, 2)
    assert torch.equal(used["2"].open, (used["2"].p > 0.5).float())


def test_the_means_are_differentiable_where_p_is() -> None:
    model = gated()
    with dg.usage(model) as used:
        model(torch.randn(5, 4))
    assert torch.equal(used.mean_p()["2"], used["2"].p.mean())
    assert torch.equal(used.mean_open()["4"], used["4"].open.mean())
    used.mean_p()["2"].backward()
    assert dg.named_gates(model)["2"].net.weight.grad.abs().sum() > 0


def test_nothing_is_recorded_outside_the_block() -> None:
    model = gated()
    with dg.usage(model) as used:
        model(torch.randn(5, 4))
    model(torch.randn(7, 4))
    assert len(used["2"].p) == 5
    assert all(gate.watcher is None for gate in dg.named_gates(model).values())


def test_two_forward_passes_are_put_one_after_the_other() -> None:
    model = gated()
    x, y = torch.randn(5, 4), torch.randn(2, 3, 4)
    with dg.usage(model) as used:
        model(x)
        model(y)
    with dg.usage(model) as first:
        model(x)
    with dg.usage(model) as second:
        model(y)
    for column in range(3):
        joined = torch.cat([first["4"][column], second["4"][column].flatten(0, 1)])
        assert torch.equal(used["4"][column], joined)


def test_an_inner_block_takes_over_and_gives_back() -> None:
    model = gated()
    with dg.usage(model) as outer:
        model(torch.randn(5, 4))
        with dg.usage(model) as inner:
            model(torch.randn(3, 4))
        model(torch.randn(2, 4))
    assert len(inner["2"].p) == 3
    assert len(outer["2"].p) == 7


def test_an_exception_inside_the_block_leaves_no_watcher_behind() -> None:
    model = gated()
    with pytest.raises(ZeroDivisionError), dg.usage(model):
        raise ZeroDivisionError
    assert all(gate.watcher is None for gate in dg.named_gates(model).values())


def test_the_usage_of_a_model_without_gates_is_empty() -> None:
    model = nn.Linear(3, 3)
    with dg.usage(model) as used:
        model(torch.zeros(1, 3))
    assert dict(used) == {}
    with pytest.raises(ValueError, match=r"a budget steers gates, and this model has none: call dynamicgate.gate_"):
        dg.Budget(target=0.5).apply_(model, 0.0)


def test_asking_before_any_forward_pass_names_the_site() -> None:
    with dg.usage(gated()) as used, pytest.raises(ValueError, match="no forward pass reached the gate at '2'"):
        used["2"]


def test_a_submodule_can_be_watched_alone() -> None:
    model = nn.Sequential(gated(), nn.ReLU(), nn.Linear(2, 2))
    with dg.usage(model[0]) as used:
        model(torch.randn(3, 4))
    assert len(used["4"].open) == 3
