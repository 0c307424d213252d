"""Rows that are compared keep their decisions, wherever rounding moves the logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamicgate as dg
from dynamicgate.gating import Gate
from dynamicgate.inference.verify import near_threshold

BLOCKS, MARGIN = 6, 2**-8
RULES: dict[str, dict[str, Any]] = {
    "threshold": {},
    "top k": {"top_k": 2},
    "always open": {"always_open": 2, "theta": 0.8},
    "router": {"kind": "router", "top_k": 3},
    "softmax": {"scale": "softmax", "tau": 0.7},
    "relu": {"scale": "relu", "tau": 0.7},
}


def gate_with(rule: str) -> Gate:
    """A gate whose logits are its inputs."""
    site = dg.Site("out", ("in",), "in", 4 * BLOCKS)
    gate = Gate(site, dg.GateConfig(block=4, net="linear", **RULES[rule]), features=BLOCKS).eval().double()
    with torch.no_grad():
        gate.net.weight.copy_(torch.eye(BLOCKS))
        gate.net.bias.zero_()
    return gate


@pytest.mark.parametrize("spread", [0.05, 3.0])
@pytest.mark.parametrize("rule", RULES)
def test_no_logits_within_the_margin_change_the_decision_of_a_row_that_is_not_near(rule: str, spread: float) -> None:
    gate, draw = gate_with(rule), torch.Generator().manual_seed(0)
    z = spread * torch.randn(4000, BLOCKS, dtype=torch.float64, generator=draw)
    decision = gate(z)
    near = near_threshold(gate, decision, MARGIN).any(-1)
    moved_by = MARGIN * z.abs().amax(0).clamp(min=1.0) * 0.999  # of float32, in which a gate decides
    changed = torch.zeros_like(near)
    for sign in (decision.open * 2 - 1, torch.randint(2, z.shape, generator=draw) * 2 - 1):
        for towards in (-sign, sign):  # first what is open down and what is closed up
            changed |= (gate(z + towards * moved_by).open != decision.open).any(-1)
    assert bool(changed.any()), "some rows are near"
    assert not bool((changed & ~near).any())
    assert float(near.double().mean()) < (0.5 if spread > 1.0 else 0.9), "most rows are compared"


def test_logits_that_are_apart_but_round_to_the_same_number_are_near() -> None:
    gate = gate_with("top k")
    z = torch.tensor([[-7.18, -4.609, -4.588, -1.0, -9.0, -9.0]], dtype=torch.float64)
    rounded = z.bfloat16().double()
    assert rounded[0, 1] == rounded[0, 2]
    assert not torch.equal(gate(z).open, gate(rounded).open)
    assert bool(near_threshold(gate, gate(z), MARGIN).any())
