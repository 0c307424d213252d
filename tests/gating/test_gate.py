"""One gate against closed forms: decisions, samples and gradients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import dynamicgate as dg
from dynamicgate import GateConfig, Site
from dynamicgate.gating import Gate
from dynamicgate.gating.gate import scale_units, top_k_mask
from tests.gating.gates import mlp, set_logits, static_gate

TAUS = (0.3, 1.0, 2.0)


# --- the straight-through gate (sec 3.5)


@pytest.mark.parametrize("tau", TAUS)
def test_the_forward_pass_of_a_hard_gate_is_the_hard_mask_bit_for_bit(tau: float) -> None:
    gate = static_gate(torch.randn(4096) * 3.0, tau=tau, theta=0.4)
    decision = gate(torch.zeros(5, 3))
    expected = (torch.sigmoid(gate.net.bias / tau) > 0.4).float().expand(5, -1)
    assert torch.equal(decision.scale, expected)
    assert torch.equal(decision.open, expected)
    assert set(decision.scale.unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("theta", [0.2, 0.5, 0.83])
def test_a_gate_opens_the_blocks_whose_logit_is_above_its_logit_threshold(tau: float, theta: float) -> None:
    gate = static_gate(torch.randn(4096) * 3.0, tau=tau, theta=theta)
    assert gate.logit_threshold.dtype == torch.float64
    far = (gate.net.bias - gate.logit_threshold).abs() > 1e-5
    opened = gate(torch.zeros(1, 3)).open[0].bool()
    assert torch.equal(opened[far], (gate.net.bias > gate.logit_threshold)[far])


@pytest.mark.parametrize("tau", TAUS)
def test_the_gradient_of_a_hard_gate_is_p_times_one_minus_p_over_tau(tau: float) -> None:
    gate = static_gate(torch.linspace(-4.0, 4.0, 257), tau=tau)
    gate(torch.zeros(1, 3)).scale.sum().backward()
    p = torch.sigmoid(gate.net.bias.detach().double() / tau)
    torch.testing.assert_close(gate.net.bias.grad.double(), p * (1 - p) / tau, rtol=1e-6, atol=2**-23 / tau)
    # 2**-23: what 1 - p can lose in float32


def test_the_task_gradient_reaches_the_logits_of_open_and_of_closed_units() -> None:
    model = dg.gate_(mlp(5, 8, 3), GateConfig(kind="static"))
    logits = torch.tensor([2.0, -2.0] * 4)
    set_logits(model, "2", logits)
    x = torch.randn(64, 5)
    model(x).square().mean().backward()
    gate = dg.named_gates(model)["2"]
    grad = gate.net.bias.grad
    assert (grad[logits > 0] != 0).all()
    assert (grad[logits < 0] != 0).all()
    # dJ/dz = dJ/dg * p(1-p)/tau, with dJ/dg of a net that is multiplied by plain leaf gates
    g = (logits > 0).float().expand(64, -1).clone().requires_grad_()
    model[2]._forward_pre_hooks.clear()
    model[2](model[1](model[0](x)) * g).square().mean().backward()
    p = torch.sigmoid(logits)
    torch.testing.assert_close(grad, g.grad.sum(0) * p * (1 - p))


# --- the other policies


def test_a_soft_gate_multiplies_by_p_in_training_and_is_hard_in_evaluation() -> None:
    gate = static_gate([-1.0, 0.5], train="soft", tau=2.0)
    p = torch.sigmoid(torch.tensor([[-0.5, 0.25]]))
    assert torch.equal(gate(torch.zeros(1, 3)).scale, p)
    gate.eval()
    assert gate(torch.zeros(1, 3)).scale.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("train", ["hard", "soft", "bernoulli", "concrete", "gumbel"])
def test_a_gate_that_evaluates_softly_multiplies_by_p_and_still_reports_hard_decisions(train: Any) -> None:
    gate = static_gate([-1.0, 0.5], train=train, evaluate="soft").eval()
    decision = gate(torch.zeros(1, 3))
    assert torch.equal(decision.scale, torch.sigmoid(torch.tensor([[-1.0, 0.5]])))
    assert decision.open.tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("train", ["hard", "soft", "bernoulli", "concrete", "gumbel"])
def test_evaluation_is_hard_and_repeatable_whatever_the_training_policy(train: Any) -> None:
    gate = static_gate([-1.0, 0.1, 3.0], train=train).eval()
    for _ in range(3):
        assert gate(torch.zeros(2, 3)).scale.tolist() == [[0.0, 1.0, 1.0]] * 2


def test_bernoulli_draws_are_zero_or_one_with_mean_p_and_carry_the_gradient_of_p() -> None:
    gate = static_gate([-2.0, 0.0, 1.0], train="bernoulli", tau=2.0)
    rows = 40_000
    decision = gate(torch.zeros(rows, 3))
    p = torch.sigmoid(torch.tensor([-1.0, 0.0, 0.5]))
    assert set(decision.scale.unique().tolist()) == {0.0, 1.0}
    five_sigma = 5 * (p * (1 - p) / rows).sqrt()
    assert ((decision.scale.mean(0) - p).abs() < five_sigma).all()
    decision.scale.sum().backward()
    torch.testing.assert_close(gate.net.bias.grad, rows * p * (1 - p) / 2.0, rtol=1e-4, atol=0.0)


def test_concrete_samples_lie_strictly_between_zero_and_one_and_are_differentiable() -> None:
    gate = static_gate([-1.0, 1.0], train="concrete", tau=0.7)
    factor = gate(torch.zeros(2000, 3)).scale
    assert ((factor > 0) & (factor < 1)).all()
    assert len(factor.unique()) > 3000
    factor.sum().backward()
    s = factor.detach()
    torch.testing.assert_close(gate.net.bias.grad, (s * (1 - s) / 0.7).sum(0), rtol=1e-4, atol=1e-4)


def test_gumbel_samples_are_zero_or_one_and_open_as_often_as_the_logistic_law_says() -> None:
    tau, theta, rows = 0.5, 0.6, 40_000
    gate = static_gate([-1.0, 0.0, 1.5], train="gumbel", tau=tau, theta=theta)
    factor = gate(torch.zeros(rows, 3)).scale
    assert set(factor.unique().tolist()) == {0.0, 1.0}
    cut = tau * math.log(theta / (1 - theta))  # P[z + logistic noise > cut]
    expected = torch.sigmoid(torch.tensor([-1.0, 0.0, 1.5]) - cut)
    assert ((factor.mean(0) - expected).abs() < 5 * (expected * (1 - expected) / rows).sqrt()).all()
    factor.sum().backward()
    assert (gate.net.bias.grad > 0).all()


def test_the_recorded_decision_is_the_deployed_one_even_while_training_draws() -> None:
    gate = static_gate([-1.0, 1.0], train="bernoulli")
    assert gate(torch.zeros(100, 3)).open.tolist() == [[0.0, 1.0]] * 100


@pytest.mark.parametrize("train", ["hard", "bernoulli", "gumbel", "concrete"])
def test_scaling_multiplies_open_units_by_p_and_leaves_the_straight_through_gradient(train: Any) -> None:
    gate = static_gate([-1.0, 0.5, 2.0], train=train, scale=True, tau=1.5)
    decision = gate(torch.zeros(50, 3))
    if train == "hard":
        p = torch.sigmoid(torch.tensor([-1.0, 0.5, 2.0]) / 1.5)
        assert torch.equal(decision.scale, (torch.tensor([0.0, 1.0, 1.0]) * p).expand(50, -1))
        decision.scale[0].sum().backward()
        torch.testing.assert_close(gate.net.bias.grad, p * (1 - p) / 1.5)
    elif train == "bernoulli":
        values = decision.scale / decision.p
        assert set(values.unique().tolist()) == {0.0, 1.0}
    assert (decision.scale < 1).all()


def test_a_scaled_gate_multiplies_by_g_times_p_in_evaluation() -> None:
    gate = static_gate([-1.0, 0.5], scale=True).eval()
    factor = gate(torch.zeros(1, 3)).scale
    assert torch.equal(factor, torch.tensor([[0.0, 1.0]]) * torch.sigmoid(torch.tensor([[-1.0, 0.5]])))


# --- gates that open continuously


@settings(deadline=None, max_examples=60)
@given(
    rows=st.lists(st.lists(st.sampled_from([0.1, 0.5, 0.5, 0.9]), min_size=7, max_size=7), min_size=1, max_size=4),
    k=st.integers(1, 9),
)
def test_top_k_opens_exactly_k_and_ties_go_to_the_lowest_index(rows: list[list[float]], k: int) -> None:
    mask = top_k_mask(torch.tensor(rows), k)
    for row, chosen in zip(rows, mask.tolist(), strict=True):
        first = sorted(range(len(row)), key=lambda i: (-row[i], i))[:k]
        assert [i for i, open_ in enumerate(chosen) if open_ == 1.0] == sorted(first)
    assert (mask.sum(-1) == min(k, 7)).all()


def test_ties_in_a_wide_layer_go_to_the_lowest_indices() -> None:
    mask = top_k_mask(torch.full((2, 5000), 0.5), 1234)
    assert torch.equal(mask, (torch.arange(5000) < 1234).float().expand(2, -1))


@pytest.mark.parametrize(
    ("top_k", "blocks", "expected"),
    [(3, 10, 3), (0.3, 10, 3), (0.25, 10, 3), (0.07, 100, 7), (0.28, 25, 7), (0.01, 10, 1), (10, 10, 10), (99, 10, 10)],
)
@pytest.mark.parametrize("training", [True, False])
def test_a_top_k_gate_opens_exactly_k_whatever_the_threshold(
    top_k: int | float, blocks: int, expected: int, training: bool
) -> None:
    gate = static_gate(torch.randn(blocks) - 5.0, top_k=top_k, train="bernoulli").train(training)
    decision = gate(torch.zeros(4, 3))
    assert decision.open.sum(-1).tolist() == [expected] * 4
    assert torch.equal(decision.scale, decision.open)


def test_top_k_keeps_the_straight_through_gradient_for_every_block() -> None:
    gate = static_gate([-1.0, 0.0, 2.0], top_k=1)
    gate(torch.zeros(1, 3)).scale.sum().backward()
    p = torch.sigmoid(torch.tensor([-1.0, 0.0, 2.0]))
    torch.testing.assert_close(gate.net.bias.grad, p * (1 - p))


@pytest.mark.parametrize("train", ["hard", "bernoulli"])
@pytest.mark.parametrize(("always_open", "expected"), [(2, [1.0, 0.0, 1.0, 0.0]), (0.25, [0.0, 0.0, 1.0, 0.0])])
def test_the_always_open_blocks_stay_open_below_the_threshold(
    train: Any, always_open: int | float, expected: list[float]
) -> None:
    gate = static_gate([-30.0, -50.0, -20.0, -40.0], always_open=always_open, train=train)  # no draw opens these
    assert gate(torch.zeros(1, 3)).scale.tolist() == [expected]
    assert gate.eval()(torch.zeros(1, 3)).open.tolist() == [expected]


def test_always_open_adds_to_the_threshold_and_never_closes() -> None:
    gate = static_gate([3.0, 2.0, 1.0, -1.0], always_open=1)
    assert gate(torch.zeros(1, 3)).open.tolist() == [[1.0, 1.0, 1.0, 0.0]]


# --- the start, and the networks that decide


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("open_", [0.2, 0.8, 0.95])
@pytest.mark.parametrize("kind_net", ["static", "linear", "low-rank", "two-layer"])
def test_training_starts_at_p0_whatever_the_temperature(tau: float, open_: float, kind_net: Any) -> None:
    shape: dict[str, Any] = {"kind": "static"} if kind_net == "static" else {"net": kind_net}
    gate = Gate(Site("out", ("in",), "in", 6), GateConfig(tau=tau, open=open_, **shape), features=5)
    for module in gate.net.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
    p = gate(torch.randn(7, 5)).p
    torch.testing.assert_close(p, torch.full((7, 6), open_), rtol=1e-6, atol=0.0)


def test_gate_networks_have_the_shapes_and_the_cost_they_are_named_after() -> None:
    site = Site("out", ("in",), "in", 33)
    linear = Gate(site, GateConfig(block=4), features=10)
    low_rank = Gate(site, GateConfig(block=4, net="low-rank", rank=3), features=10)
    two_layer = Gate(site, GateConfig(block=4, net="two-layer", rank=3), features=10)
    static = Gate(site, GateConfig(block=4, kind="static"), features=10)
    assert [g.blocks for g in (linear, low_rank, two_layer, static)] == [9] * 4
    assert linear.block_sizes.tolist() == [4] * 8 + [1]
    assert (linear.macs, low_rank.macs, two_layer.macs, static.macs) == (10 * 9, 10 * 3 + 3 * 9, 10 * 3 + 3 * 9, 0)
    assert low_rank.net[0].bias is None
    assert two_layer.net[0].bias is not None
    x = torch.randn(2, 10)
    a, b = low_rank.net
    torch.testing.assert_close(low_rank(x).p, torch.sigmoid(x @ a.weight.T @ b.weight.T + b.bias))
    c, _, d = two_layer.net
    inner = (x @ c.weight.T + c.bias).clamp(min=0)
    torch.testing.assert_close(two_layer(x).p, torch.sigmoid(inner @ d.weight.T + d.bias))


def test_a_gate_decides_for_any_leading_dimensions() -> None:
    gate = Gate(Site("out", ("in",), "in", 6), GateConfig(block=2), features=5)
    x = torch.randn(2, 3, 5)
    assert torch.equal(gate(x).open.flatten(0, 1), gate(x.flatten(0, 1)).open)
    assert static_gate([1.0, -1.0])(x).open.shape == (2, 3, 2)


@settings(deadline=None, max_examples=40)
@given(width=st.integers(1, 19), block=st.integers(1, 21), rows=st.integers(0, 3))
def test_closing_units_multiplies_each_unit_by_the_factor_of_its_block(width: int, block: int, rows: int) -> None:
    h, factor = torch.randn(rows, width), torch.randn(rows, math.ceil(width / block))
    closed = scale_units(h, factor, block)
    assert closed.shape == h.shape
    for b in range(rows):
        for i in range(width):
            assert closed[b, i] == h[b, i] * factor[b, i // block]
