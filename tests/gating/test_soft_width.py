"""Gates that open continuously."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from dynamicgate import GateConfig, Site
from dynamicgate.gating import Gate
from tests.gating.gates import static_gate


def ramped(z: Tensor, tau: float, theta: float, soft_width: float) -> Tensor:
    """What multiplies the units, in float64."""
    height = z.double() / tau - math.log(theta / (1 - theta))
    return (height / soft_width).clamp(0.0, 1.0)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize(("tau", "theta", "soft_width"), [(1.0, 0.5, 1.1), (0.3, 0.8, 0.5), (2.0, 0.2, 4.0)])
def test_a_ramp_opens_units_by_how_far_their_logit_is_above_the_threshold(
    tau: float, theta: float, soft_width: float, kind: Any, training: bool
) -> None:
    config = GateConfig(
        kind=kind, net="auto" if kind == "static" else "linear", tau=tau, theta=theta, soft_width=soft_width
    )
    gate = Gate(Site("out", ("in",), "in", 301), config, features=3).train(training)
    with torch.no_grad():
        gate.bias.copy_(torch.linspace(-12.0, 12.0, 301))
    decision = gate(torch.randn(7, 3))
    expected = ramped(decision.logits.detach(), tau, theta, soft_width)
    assert ((expected > 0) & (expected < 1)).any()
    torch.testing.assert_close(decision.scale.double(), expected, rtol=1e-5, atol=2e-6)
    assert torch.equal(decision.open, (decision.p > gate.theta).float())
    assert bool((decision.scale[decision.open == 0] == 0).all())
    assert bool((decision.scale[decision.logits / tau > math.log(theta / (1 - theta)) + 1.01 * soft_width] == 1).all())


@pytest.mark.parametrize("theta", [0.5, 0.7])
def test_nothing_jumps_where_a_gate_with_a_ramp_closes(theta: float) -> None:
    tau, near = 0.5, torch.tensor([-1e-3, -1e-5, 0.0, 1e-5, 1e-3])
    cut = tau * math.log(theta / (1 - theta))
    factors = {
        soft_width: static_gate(cut + near, tau=tau, theta=theta, soft_width=soft_width)(torch.zeros(1, 3))
        for soft_width in (0.0, 1.0)
    }
    assert set(factors[0.0].scale.flatten().tolist()) == {0.0, 1.0}
    assert factors[1.0].scale.tolist()[0] == pytest.approx([0.0, 0.0, 0.0, 2e-5, 2e-3], abs=1e-6)
    assert torch.equal(factors[1.0].open, factors[0.0].open)


@pytest.mark.parametrize("train", ["hard", "gumbel"])
def test_a_ramp_leaves_probabilities_decisions_and_the_gradient_as_they_are(train: Any) -> None:
    logits = torch.linspace(-4.0, 4.0, 257)
    seen = []
    for soft_width in (0.0, 0.8):
        torch.manual_seed(3)  # the same noise
        gate = static_gate(logits, train=train, tau=0.7, theta=0.4, soft_width=soft_width)
        decision = gate(torch.zeros(20, 3))
        (decision.scale * torch.linspace(-1.0, 2.0, 257)).sum().backward()
        seen.append((decision, gate.net.bias.grad))
    (sharp, gradient), (smooth, same) = seen
    assert torch.equal(gradient, same)
    assert torch.equal(sharp.p, smooth.p)
    assert torch.equal(sharp.open, smooth.open)
    assert torch.equal(sharp.scale, (smooth.scale > 0).float())
    assert bool(((smooth.scale > 0) & (smooth.scale < 1)).any())


def test_a_noisy_gate_with_a_ramp_starts_from_the_noisy_logit() -> None:
    gate = static_gate([0.3] * 5, train="gumbel", tau=0.7, theta=0.4, soft_width=2.0)
    torch.manual_seed(5)
    factor = gate(torch.zeros(400, 3)).scale
    torch.manual_seed(5)
    u = torch.rand(400, 5).double()
    torch.testing.assert_close(factor.double(), ramped(0.3 + torch.logit(u), 0.7, 0.4, 2.0), rtol=1e-4, atol=1e-5)


def test_a_ramp_begins_where_the_threshold_is_now() -> None:
    gate = static_gate([1.0], soft_width=2.0)
    assert gate(torch.zeros(1, 3)).scale.item() == pytest.approx(0.5)
    gate.theta.fill_(torch.sigmoid(torch.tensor(0.5)))
    assert gate(torch.zeros(1, 3)).scale.item() == pytest.approx(0.25)
    gate.tau.fill_(1.25)
    assert gate(torch.zeros(1, 3)).scale.item() == pytest.approx(0.15)


# --- top-k and the floor under it (sec 3.4, 4.1(4))
