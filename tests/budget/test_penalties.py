"""Each open-loop penalty against its formula, and the direction in which it pushes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch import distributed as dist

from dynamicgate import GateConfig, Site
from dynamicgate.budget import penalties
from dynamicgate.budget.penalties import PENALTIES, straight_through_usage
from dynamicgate.distributed import RowMeans
from dynamicgate.gating import Decision, Gate, Usage
from tests import forked

P = [[0.9, 0.6, 0.2], [0.7, 0.4, 0.1]]  # mean 0.4833
G = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]]  # mean 0.5


ONE_PROCESS = RowMeans(torch.empty(1, 1))


def decision(p: list[list[float]] = P) -> Decision:
    p_BG = torch.tensor(p, requires_grad=True)
    g_BG = (p_BG.detach() > 0.5).float()
    return Decision(p_BG, g_BG, scale=g_BG, logits=torch.logit(p_BG), routed=g_BG)


def gate(block: int = 4, width: int = 9) -> Gate:
    return Gate(Site("out", ("in",), "in", width), GateConfig(block=block, kind="static"), features=2)


def value_and_gradient(form: str, keep: float) -> tuple[float, Tensor]:
    used = decision()
    penalty = PENALTIES[form](used, gate(), keep, ONE_PROCESS)
    penalty.backward()
    assert used.p.grad is not None
    return float(penalty.detach()), used.p.grad


MEAN_P, MEAN_G = 2.9 / 6, 0.5
COST = (0.9 * 4 + 0.6 * 4 + 0.2 * 1 + 0.7 * 4 + 0.4 * 4 + 0.1 * 1) / (2 * 9)


@pytest.mark.parametrize(
    ("form", "keep", "value", "slope"),
    [
        ("linear", 0.3, MEAN_P, 1.0),
        ("hinge", 0.3, MEAN_P - 0.3, 1.0),
        ("hinge", 0.6, 0.0, 0.0),
        ("keep-hinge", 0.9, (0.9 - MEAN_P) ** 2, -2 * (0.9 - MEAN_P)),
        ("keep-hinge", 0.3, 0.0, 0.0),
        ("squared-soft", 0.3, (MEAN_P - 0.3) ** 2, 2 * (MEAN_P - 0.3)),
        ("squared-soft", 0.9, (MEAN_P - 0.9) ** 2, 2 * (MEAN_P - 0.9)),
        ("squared-hard", 0.3, (MEAN_G - 0.3) ** 2, 2 * (MEAN_G - 0.3)),
        ("squared-hard", 0.9, (MEAN_G - 0.9) ** 2, 2 * (MEAN_G - 0.9)),
    ],
)
def test_a_penalty_is_its_formula_and_its_gradient_is_the_same_for_every_probability(
    form: str, keep: float, value: float, slope: float
) -> None:
    found, gradient = value_and_gradient(form, keep)
    assert found == pytest.approx(value, rel=1e-6, abs=1e-9)
    torch.testing.assert_close(gradient, torch.full((2, 3), slope / 6))


def test_the_cost_penalty_weighs_blocks_by_their_units() -> None:
    value, gradient = value_and_gradient("cost", 0.0)
    assert value == pytest.approx(COST, rel=1e-6)
    torch.testing.assert_close(gradient, torch.tensor([[4.0, 4.0, 1.0]] * 2) / 18)


def test_the_cost_penalty_of_equal_blocks_is_the_linear_one() -> None:
    equal = gate(block=3, width=9)
    linear, cost = (PENALTIES[form](decision(), equal, 0.0, ONE_PROCESS) for form in ("linear", "cost"))
    torch.testing.assert_close(linear, cost)


def test_the_hard_usage_has_the_value_of_g_and_the_gradient_of_p() -> None:
    used = decision()
    usage = straight_through_usage(used)
    assert torch.equal(usage, used.open)
    usage.sum().backward()
    assert torch.equal(used.p.grad, torch.ones(2, 3))
    assert used.open.tolist() == G


# --- the balance of a router


def router(experts: int = 4, top_k: int = 1, **config: Any) -> Gate:
    config = {"kind": "router", "block": 3, "top_k": top_k, **config}
    gate = Gate(Site("out", ("in",), "in", experts * 3), GateConfig(**config), features=2)
    torch.nn.init.normal_(gate.net.weight, std=2.0)
    return gate


def load_balance(gate: Gate, used: Decision) -> float:
    """Without the z-loss."""
    z_loss = 0.1 * used.logits.logsumexp(-1).square().mean()
    return float((PENALTIES["balance"](used, gate, 0.0, ONE_PROCESS) - z_loss).detach())


@pytest.mark.parametrize("top_k", [1, 2])
def test_even_routing_costs_one(top_k: int) -> None:
    gate = router(top_k=top_k)
    z_BG = 2.0 * torch.eye(4)
    p_BG = z_BG.softmax(-1)
    routed_BG = torch.eye(4) if top_k == 1 else torch.eye(4) + torch.eye(4).roll(1, 0)
    used = Decision(p_BG, routed_BG, scale=routed_BG, logits=z_BG, routed=routed_BG)
    assert load_balance(gate, used) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(("top_k", "cost"), [(1, 4.0), (2, 2.0)])
def test_everything_to_the_same_experts_costs_as_many_times_as_there_are_others_to_share_it(
    top_k: int, cost: float
) -> None:
    gate = router(top_k=top_k)
    with torch.no_grad():
        gate.net.weight.zero_()
        gate.net.bias[:top_k] = 40.0
    assert load_balance(gate, gate(torch.randn(9, 2))) == pytest.approx(cost, rel=1e-6)


@pytest.mark.parametrize(("top_k", "capacity"), [(1, None), (2, None), (2, 0.5)])
def test_the_balance_is_its_formula_in_value_and_gradient_whatever_was_dropped(
    top_k: int, capacity: float | None
) -> None:
    gate, x = router(top_k=top_k, capacity=capacity), torch.randn(7, 2)
    penalty = PENALTIES["balance"](gate(x), gate, 0.0, ONE_PROCESS)
    penalty.backward()
    weight, bias = (parameter.detach().double().requires_grad_() for parameter in gate.net.parameters())
    z = x.double() @ weight.T + bias
    p = z.exp() / z.exp().sum(1, keepdim=True)
    asked = [e for row in p.tolist() for e in sorted(range(4), key=lambda e: -row[e])[:top_k]]
    naive = 4 * sum(asked.count(e) / len(asked) * p[:, e].mean() for e in range(4))
    naive = naive + 0.1 * z.exp().sum(1).log().square().mean()
    naive.backward()
    assert float(penalty.detach()) == pytest.approx(naive.item(), rel=1e-5)
    for mine, other in zip(gate.net.parameters(), (weight, bias), strict=True):
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=1e-4, atol=1e-6)


def test_the_balance_pushes_towards_experts_that_are_asked_for_less() -> None:
    gate, x = router(), torch.randn(40, 2)
    with torch.no_grad():
        gate.net.bias[0] = 3.0
    used = gate(x)
    (PENALTIES["balance"](used, gate, 0.0, ONE_PROCESS) - 0.1 * used.logits.logsumexp(-1).square().mean()).backward()
    assert gate.net.bias.grad[0] > 0
    assert gate.net.bias.grad[used.routed.sum(0).argmin()] < 0


class WithOthers(RowMeans):
    """As if half of the rows were elsewhere: twice the mean of everything, and all assignments to the last expert."""

    def columns(self, value_BG: Tensor) -> Tensor:
        return (value_BG.mean(0) + torch.tensor([0.0, 0.0, 0.0, 1.0])) / 2

    def mean(self, value: Tensor) -> Tensor:
        return 2.0 * value.mean()


def test_load_importance_and_z_loss_each_go_through_the_mean_over_processes() -> None:
    gate, x = router(), torch.randn(7, 2)
    used = gate(x)
    z_loss = 0.1 * used.logits.logsumexp(-1).square().mean()
    joined = PENALTIES["balance"](used, gate, 0.0, WithOthers(x))
    load = (used.routed.mean(0) + torch.tensor([0.0, 0.0, 0.0, 1.0])) / 2
    torch.testing.assert_close(joined, 2.0 * 4 * (load * used.p.mean(0)).sum() + 2.0 * z_loss)


def both_balances(used: Decision, gate: Gate, means: RowMeans) -> Tensor:
    return PENALTIES["balance"](used, gate, 0.0, means) + 3.0 * penalties.load_balance(used, means)


def shares_of_two(rank: int, folder: str) -> None:
    """One of two processes: its share of the rows, its penalty, and its gradients averaged as DDP does."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    torch.manual_seed(0)
    gate, x = router(top_k=2), torch.randn(11, 2)
    mine = x[:7] if rank == 0 else x[7:]
    used = Usage({"out": gate})
    used(gate, gate(mine))
    penalty = both_balances(used["out"], gate, RowMeans(mine))
    penalty.backward()
    for parameter in gate.net.parameters():
        dist.all_reduce(parameter.grad)
    if rank == 0:
        gradients = [(parameter.grad / 2).tolist() for parameter in gate.net.parameters()]
        Path(folder, "found.json").write_text(json.dumps([float(penalty.detach()), *gradients]))
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_with_uneven_shares_give_the_penalty_and_the_gradients_of_one(tmp_path: Path) -> None:
    forked.call_in_two_processes(shares_of_two, str(tmp_path))
    found, weight, bias = json.loads((tmp_path / "found.json").read_text())
    torch.manual_seed(0)
    gate, x = router(top_k=2), torch.randn(11, 2)
    penalty = both_balances(gate(x), gate, ONE_PROCESS)
    penalty.backward()
    assert found == pytest.approx(float(penalty.detach()), rel=1e-5)
    torch.testing.assert_close(torch.tensor(weight), gate.net.weight.grad, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(torch.tensor(bias), gate.net.bias.grad, rtol=1e-4, atol=1e-6)


def test_a_gate_that_does_not_route_is_answered_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="over the experts of a router, received a gate of kind 'static'"):
        PENALTIES["balance"](decision(), gate(), 0.0, ONE_PROCESS)


def test_every_form_has_a_test() -> None:
    assert set(PENALTIES) == {"linear", "cost", "hinge", "keep-hinge", "squared-soft", "squared-hard", "balance"}
