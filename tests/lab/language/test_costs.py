"""What a token costs, against formulas by hand; and that methods at the same `executes` cost the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynamicgate.budget import Budget, OpenLoopBudget
from dynamicgate.gating.recording import usage
from dynamicgate.lab.language.costs import Costs, TrainingCost
from dynamicgate.lab.language.ffn_methods import METHODS, FFNSettings, affordable, prepare
from dynamicgate.lab.language.load import load_penalty
from tests.lab.language.conftest import SIZES

CPU = torch.device("cpu")
D, L, T, V = SIZES.features, SIZES.layers, SIZES.context, SIZES.vocabulary


def by_hand(width: float) -> float:
    """Projections, scores and mixing over a whole window, the feed-forward layer, and the head."""
    return L * (4 * D * D + 2 * T * D + 2 * width * D * D) + V * D


def ids() -> torch.Tensor:
    return torch.randint(256, (3, T), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("width", [1, 2.5, 16])
def test_a_dense_model(width: float) -> None:
    prepared = prepare(FFNSettings(width=width), SIZES, CPU)
    with usage(prepared.model) as used:
        prepared.model(ids())
    assert float(Costs(prepared).executed(used)) == Costs(prepared).dense == by_hand(width)


@pytest.mark.parametrize("method", ["gate", "static", "top-k", "random", "router", "gate+rigl"])
def test_gates_are_counted_as_open_blocks_and_the_gate(method: str) -> None:
    prepared = prepare(FFNSettings(method=method, width=16, executes=1, block=16), SIZES, CPU)  # type: ignore[arg-type]
    with usage(prepared.model) as used:
        prepared.model(ids())
    rates = [float(rate) for rate in used.mean_open().values()]
    gate = 0 if method == "static" else L * D * 32
    expected = by_hand(16) - sum((1 - rate) * 2 * 16 * D * D for rate in rates) + gate
    costs = Costs(prepared)
    assert float(costs.executed(used)) == pytest.approx(expected, rel=1e-6)
    assert (costs.dense, costs.deciding) == (by_hand(16), gate)


def test_a_relu_router_is_counted_alike() -> None:
    prepared = prepare(FFNSettings(method="relu router", width=16, executes=1, block=16), SIZES, CPU)
    with usage(prepared.model) as used:
        prepared.model(ids())
    rates = [float(rate) for rate in prepared.budget.rates()]  # type: ignore[union-attr]
    assert 0.3 < min(rates) < max(rates) < 0.7  # random scores
    expected = by_hand(16) - sum((1 - rate) * 2 * 16 * D * D for rate in rates) + L * D * 32
    assert float(Costs(prepared).executed(used)) == pytest.approx(expected, rel=1e-6)
    assert Costs(prepared).dense == by_hand(16)


def test_the_budget_is_the_cost_of_the_narrow_dense_model() -> None:
    prepared = prepare(FFNSettings(method="gate", width=16, executes=1, block=16), SIZES, CPU)
    assert isinstance(prepared.budget, Budget)
    assert prepared.budget.target * by_hand(16) == pytest.approx(by_hand(1))


def test_as_many_blocks_as_the_router_leaves_money_for() -> None:
    settings = FFNSettings(method="top-k", width=16, executes=1, block=16)
    blocks = affordable(settings, SIZES.features)
    cost = blocks * 2 * D * 16 + D * 32  # and one more block would be too much
    assert cost <= 2 * D * D < cost + 2 * D * 16
    with pytest.raises(ValueError, match="does not pay for one block of 8 units"):
        prepare(replace(settings, block=8), SIZES, CPU)


def test_layers_of_top_k_can_have_rates_of_their_own() -> None:
    settings = FFNSettings(method="top-k", width=16, executes=1, block=16, rates=(0.25, 0.001))
    prepared = prepare(settings, SIZES, CPU)
    with usage(prepared.model) as used:
        prepared.model(ids())
    assert [float(rate) for rate in used.mean_open().values()] == [8 / 32, 1 / 32]


def test_top_k_refuses_what_it_would_ignore() -> None:
    asked = FFNSettings(method="top-k", width=16, executes=1, block=16)
    with pytest.raises(ValueError, match="expected always_open=0, received"):
        prepare(replace(asked, always_open=0.1), SIZES, CPU)
    with pytest.raises(ValueError, match="never trained, so that no penalty balances them"):
        prepare(replace(asked, method="random", gate_balance=0.1), SIZES, CPU)
    with pytest.raises(ValueError, match="rates has 3 values: expected one for each of the 2 layers"):
        prepare(replace(asked, rates=(0.1, 0.1, 0.1)), SIZES, CPU)


def test_top_k_balances_its_load_where_it_is_asked_to() -> None:
    asked = FFNSettings(method="top-k", width=16, executes=1, block=16, scale="softmax", gate_balance=0.1)
    model, budget, _, _ = prepare(asked, SIZES, CPU)
    assert isinstance(budget, OpenLoopBudget)
    budget.apply_(model, 0.5)
    with usage(model) as used:
        model(ids())
    assert float(budget.step(used, 0.5).detach()) == pytest.approx(0.1 * float(load_penalty(used).detach()))
    assert prepare(replace(asked, gate_balance=0.0), SIZES, CPU).budget is None


def test_training_is_three_forward_passes_and_what_the_exact_gradient_adds() -> None:
    prepared = prepare(FFNSettings(method="top-k", width=16, executes=1, block=16), SIZES, CPU)
    with usage(prepared.model) as used:
        prepared.model(ids())
    closed = L * (1 - 1 / 32) * 2 * 16 * D * D
    for exact, added in ((False, 0.0), (True, closed)):
        spent = TrainingCost(Costs(prepared), exact=exact)
        spent.add(used, 48)
        spent.add(used, 2)
        assert spent.total == pytest.approx(50 * (3 * by_hand(1) + added), rel=1e-6)


def test_who_learns_from_closed_blocks() -> None:
    learns = {method for method in METHODS if FFNSettings(method=method).learns_from_closed_blocks}  # type: ignore[arg-type]
    assert learns == {"gate", "static", "gate+rigl", "top-k"}


def test_the_sparse_gradient_needs_a_gpu() -> None:
    with pytest.raises(ValueError, match="property of the GPU kernels"):
        prepare(FFNSettings(method="gate", executes=1, gate_gradient="sparse"), SIZES, CPU)
    with pytest.raises(ValueError, match="unknown method 'moe'"):
        prepare(FFNSettings(method="moe"), SIZES, CPU)  # type: ignore[arg-type]
