"""A router against closed forms and naive loops: top-k experts, their weights, and which rows they drop."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import Budget, GateConfig, Site
from dynamicgate.gating import Gate
from dynamicgate.gating.routing import drop_over_capacity, expert_capacity, route, top_k_mask


def router(features: int = 4, experts: int = 5, width: int = 3, **config: Any) -> Gate:
    gate = Gate(Site("out", ("in",), "in", experts * width), GateConfig(kind="router", block=width, **config), features)
    if gate.config.net == "linear":
        nn.init.normal_(gate.net.weight)
    return gate


# --- top-k experts and their weights


@pytest.mark.parametrize("top_k", [1, 2, 3, 5])
@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_a_router_opens_the_k_most_probable_experts_weighted_by_their_softmax(top_k: int, tau: float) -> None:
    gate = router(top_k=top_k, tau=tau)
    x = torch.randn(7, 4)
    found = gate(x)
    direction = torch.randn(7, 5)
    (found.scale * direction).sum().backward()
    weight, bias = (parameter.detach().double().requires_grad_() for parameter in gate.net.parameters())
    rows = []
    for row in x.double():
        z = [(weight[e] * row).sum() + bias[e] for e in range(5)]
        total = sum(torch.exp(value / tau) for value in z)
        p = [torch.exp(value / tau) / total for value in z]
        chosen = sorted(range(5), key=lambda e: -p[e].item())[:top_k]
        kept = sum(p[e] for e in chosen) if top_k > 1 else 1.0
        rows.append(torch.stack([p[e] / kept if e in chosen else p[e] * 0 for e in range(5)]))
    expected = torch.stack(rows)
    torch.testing.assert_close(found.scale.double(), expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(found.open, (expected > 0).float())
    assert torch.equal(found.routed, found.open)
    torch.testing.assert_close(found.p.sum(-1), torch.ones(7))
    (expected * direction.double()).sum().backward()
    for mine, naive in zip(gate.net.parameters(), (weight, bias), strict=True):
        torch.testing.assert_close(mine.grad.double(), naive.grad, rtol=1e-4, atol=1e-6)


def test_one_expert_is_weighted_by_its_probability_and_the_weights_of_several_sum_to_one() -> None:
    p_BG, _, one_BG = route(torch.randn(6, 4), 1)
    torch.testing.assert_close(one_BG.sum(-1), p_BG.amax(-1))
    _, _, two_BG = route(torch.randn(6, 4), 2)
    torch.testing.assert_close(two_BG.sum(-1), torch.ones(6))


@pytest.mark.parametrize("top_k", [1, 2])
def test_the_router_learns_from_the_open_experts_only(top_k: int) -> None:
    z_BG = torch.randn(6, 4, requires_grad=True)
    _, routed_BG, weight_BG = route(z_BG, top_k)
    closed = routed_BG == 0
    (weight_BG * torch.where(closed, torch.tensor(1e6), torch.tensor(0.0))).sum().backward()
    assert torch.equal(z_BG.grad, torch.zeros(6, 4)), "closed experts give no gradient"
    z_BG.grad = None
    route(z_BG, top_k)[2][:, 0].sum().backward()
    assert z_BG.grad.abs().sum() > 0


def test_equal_logits_open_the_first_experts() -> None:
    assert route(torch.zeros(2, 4), 2)[1].tolist() == [[1.0, 1.0, 0.0, 0.0]] * 2


def test_huge_logits_give_finite_weights_and_gradients() -> None:
    z_BG = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    p_BG, _, weight_BG = route(z_BG, 2)
    weight_BG.sum().backward()
    assert all(bool(t.isfinite().all()) for t in (p_BG, weight_BG, z_BG.grad))


# --- capacity


@pytest.mark.parametrize(
    ("rows", "k", "experts", "factor", "capacity"),
    [
        (128, 2, 8, 2.5, 80),
        (16, 2, 8, 2.5, 10),
        (128, 2, 8, 2.0, 64),
        (80, 1, 8, 1.1, 11),
        (81, 1, 8, 1.1, 12),
        (3, 1, 8, 1.0, 1),
        (0, 1, 8, 1.0, 1),
        (100, 1, 8, 0.001, 1),
    ],
)
def test_the_capacity_of_an_expert_is_the_mean_load_times_the_factor_rounded_up(
    rows: int, k: int, experts: int, factor: float, capacity: int
) -> None:
    assert expert_capacity(rows, k, experts, factor) == capacity
    assert router(experts=experts, top_k=k, capacity=factor).expert_capacity(rows) == capacity


@settings(deadline=None, max_examples=60)
@given(
    rows=st.integers(0, 12),
    k=st.integers(1, 3),
    capacity=st.integers(1, 13),
    policy=st.sampled_from(["position", "random"]),
)
def test_only_full_experts_drop_rows_and_only_as_many_as_exceed_their_capacity(
    rows: int, k: int, capacity: int, policy: Any
) -> None:
    routed = top_k_mask(torch.randn(rows, 4).softmax(-1), k)
    kept = drop_over_capacity(routed, capacity, policy)
    assert (kept <= routed).all()
    assert kept.sum(0).tolist() == [min(capacity, count) for count in routed.sum(0).tolist()]
    if policy == "position":
        for e in range(4):
            assigned = [b for b in range(rows) if routed[b, e]]
            assert [b for b in range(rows) if kept[b, e]] == assigned[:capacity]


def test_random_drops_hit_every_row_equally_often_and_independently_for_each_expert() -> None:
    routed = torch.ones(6, 2)
    draws = 4000
    kept = torch.stack([drop_over_capacity(routed, 2, "random") for _ in range(draws)])
    five_sigma = 5 * math.sqrt(1 / 3 * 2 / 3 / draws)
    assert ((kept.mean(0) - 1 / 3).abs() < five_sigma).all()
    both = (kept[..., 0] * kept[..., 1]).mean()
    assert abs(float(both) - 1 / 9) < 5 * math.sqrt(1 / 9 * 8 / 9 / draws / 6)


@pytest.mark.parametrize("training", [True, False])
def test_assignments_over_capacity_are_dropped_in_training_and_in_evaluation(training: bool) -> None:
    gate = router(experts=4, top_k=2, capacity=0.5).train(training)
    decision = gate(torch.randn(16, 4))
    assert decision.routed.sum(-1).tolist() == [2.0] * 16
    assert decision.open.sum(0).max() <= gate.expert_capacity(16) == 4
    assert 0 < decision.open.sum() < 32
    assert torch.equal(decision.scale != 0, decision.open != 0)
    p = decision.p * decision.routed
    torch.testing.assert_close(decision.scale, p / p.sum(-1, keepdim=True) * decision.open)


def test_capacity_counts_the_rows_of_all_leading_dimensions_together() -> None:
    gate = router(capacity=0.7)
    x = torch.randn(3, 5, 4)
    assert torch.equal(gate(x).open.flatten(0, 1), gate(x.flatten(0, 1)).open)
    assert gate(x).open.sum((0, 1)).max() <= gate.expert_capacity(15) == 3


def test_without_a_capacity_nothing_is_dropped() -> None:
    gate = router()
    with torch.no_grad():
        gate.net.weight.zero_()
        gate.net.bias[2] = 9.0
    assert gate.expert_capacity(100) is None
    assert gate(torch.randn(100, 4)).open.sum(0).tolist() == [0.0, 0.0, 100.0, 0.0, 0.0]


# --- defaults, and what is refused


def test_a_router_is_by_default_linear_without_bias_and_opens_one_expert_for_each_row() -> None:
    gate = router(features=512, experts=64)
    assert (gate.config.top_k, gate.config.net) == (1, "linear")
    assert gate.net.bias.tolist() == [0.0] * 64
    assert gate.macs == 512 * 64
    assert "router (linear), 192 units in 64 blocks, top 1, capacity None" in repr(gate)
    assert router(net="low-rank", rank=2).macs == 2 * (4 + 5)


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ({"kind": "router", "train": "soft"}, "a router opens exactly top_k experts: expected train='hard'.*'soft'"),
        ({"kind": "router", "evaluate": "soft"}, "a router opens exactly top_k experts.*received 'hard', 'soft' and 0"),
        ({"kind": "router", "always_open": 1}, "a router opens exactly top_k experts.*received 'hard', 'hard' and 1"),
        ({"kind": "router", "capacity": 0.0}, "capacity is a factor on an even load.*received 0.0"),
        ({"kind": "router", "capacity": float("nan")}, "capacity is a factor on an even load.*received nan"),
        ({"kind": "router", "drop_policy": "last"}, "drop_policy must be one of position, random, received 'last'"),
        ({"capacity": 1.0}, "capacity and drop_policy are for experts: expected kind='router', received 'dynamic'"),
        ({"kind": "static", "drop_policy": "random"}, "expected kind='router', received 'static'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        GateConfig(**setting)


def test_a_budget_with_a_target_is_refused_for_a_router() -> None:
    model = dg.gate_(nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)), GateConfig(kind="router", block=3))
    with pytest.raises(ValueError, match=r"steers hard thresholds, but the gate at '2' opens exactly top_k blocks"):
        Budget(target=0.5).bind(dg.accounting.MacCounter.for_mlp(model))


def test_usage_concatenates_the_logits_and_assignments_of_several_passes() -> None:
    model = dg.gate_(
        nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 2)), GateConfig(kind="router", block=3, capacity=0.5)
    )
    x = torch.randn(8, 4)
    with dg.usage(model) as used:
        model(x)
        model(x)
    gate = dg.named_gates(model)["2"]
    torch.testing.assert_close(used["2"].logits, gate.net(x).repeat(2, 1))
    assert used["2"].routed.sum() == 16
    assert used["2"].open.sum() < 16


def test_other_gates_record_their_logits_and_route_to_exactly_what_they_open() -> None:
    gate = Gate(Site("out", ("in",), "in", 6), GateConfig(block=2), features=4)
    x = torch.randn(5, 4)
    decision: Any = gate(x)
    torch.testing.assert_close(decision.logits, gate.net(x))
    assert torch.equal(decision.routed, decision.open)


def test_a_router_in_half_precision_decides_in_float32() -> None:
    gate = router(capacity=1.0)
    gate.net.bfloat16()
    parts: tuple[Tensor, ...] = gate(torch.randn(6, 4).bfloat16())
    assert {part.dtype for part in parts} == {torch.float32}
