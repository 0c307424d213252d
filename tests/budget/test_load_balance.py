"""Gates that choose among many blocks can be kept from using only a few of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.budget.penalties import load_balance
from dynamicgate.distributed import RowMeans
from dynamicgate.gating.gate import Decision


def by_hand(open_BG: Tensor, p_BG: Tensor) -> Tensor:
    load_G, importance_G = open_BG.mean(0) / open_BG.mean(0).sum(), p_BG.mean(0)
    return len(load_G) * (load_G * importance_G / importance_G.sum()).sum()


def test_it_is_its_formula_in_value_and_gradient() -> None:
    p_BG = torch.rand(2, 5, 7, dtype=torch.float64, requires_grad=True)
    open_BG = (p_BG.detach() > 0.6).double()
    mine = load_balance(Decision(p_BG, open_BG, open_BG, p_BG, open_BG), RowMeans(p_BG.flatten(0, 1)))
    theirs = by_hand(open_BG.flatten(0, 1), p_BG.flatten(0, 1))
    torch.testing.assert_close(mine, theirs)
    (a,), (b,) = (torch.autograd.grad(value, p_BG, retain_graph=True) for value in (mine, theirs))
    torch.testing.assert_close(a, b)


def model() -> nn.Module:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3))
    return dg.gate_(made, dg.GateConfig(block=4, open=0.5))


def step_of(balance: float, *, again: bool = False) -> tuple[float, dg.gating.Usage]:
    net, x = model(), torch.randn(9, 6, generator=torch.Generator().manual_seed(1))
    budget = dg.Budget(target=0.6, warmup=0.0, balance=balance)
    budget.apply_(net, 0.0)
    with dg.usage(net) as used:
        net(x)
    found = budget.step(used, 0.0)
    return float((budget.penalty(used) if again else found).detach()), used


@pytest.mark.parametrize("again", [False, True])
def test_a_budget_adds_the_mean_over_its_gates(again: bool) -> None:
    (without, used), (with_it, _) = step_of(0.0, again=again), step_of(0.5, again=again)
    mean = torch.stack([by_hand(used[site].open, used[site].p) for site in used]).mean()
    assert with_it - without == pytest.approx(0.5 * float(mean.detach()), rel=1e-5)


def test_gates_that_do_not_depend_on_the_input_are_left_alone() -> None:
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3))
    dg.gate_(net, dg.GateConfig(kind="static", block=4))
    budget = dg.Budget(target=0.6, warmup=0.0, balance=1.0)
    budget.apply_(net, 0.0)
    with dg.usage(net) as used:
        net(torch.randn(4, 6))
    assert float(budget._choice_terms(used, budget._means(used))) == 0.0


@pytest.mark.parametrize("balance", [-0.1, float("nan"), float("inf")])
def test_a_weight_that_is_none_is_refused(balance: float) -> None:
    with pytest.raises(ValueError, match="expected 0 or more"):
        dg.Budget(target=0.5, balance=balance)
