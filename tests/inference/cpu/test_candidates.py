"""Candidates are plain values: naming one changes nothing, and any builder can build any of them."""

from __future__ import annotations

import pytest
import torch

import dynamicgate as dg
from dynamicgate.inference.cpu.candidates import (
    DENSE,
    OWN_DENSE,
    Candidate,
    Candidates,
    LayerLayout,
    layouts_to_try,
    packed,
)
from tests.inference.models import gated_mlp, lower_only_chain

PANELS = packed([LayerLayout("panels")] * 3)


def test_a_packed_candidate_is_named_after_the_layouts_of_its_layers() -> None:
    candidate = packed([LayerLayout("panels", skip_zeros=True), LayerLayout("csr")])
    assert candidate.name == "panels skipping zeros + csr"
    assert candidate == packed([LayerLayout("panels", skip_zeros=True), LayerLayout("csr")])


@pytest.mark.parametrize("candidate", [DENSE, OWN_DENSE, PANELS], ids=lambda c: c.name)
def test_a_candidate_can_be_built_whoever_made_it_and_whatever_was_built_before(candidate: Candidate) -> None:
    model, x = gated_mlp(dg.GateConfig(block=16)), torch.randn(40, 20)
    lowered = lower_only_chain(model, x)
    fresh, used = Candidates(lowered), Candidates(lowered)
    for other in (PANELS, DENSE, OWN_DENSE):
        used.build(other)
    y = fresh.call(fresh.build(candidate))(x)
    assert torch.equal(used.call(used.build(candidate))(x), y)
    assert fresh.build(candidate) is fresh.build(candidate)
    assert fresh.call(fresh.build_first(candidate, 2))(x).shape == (40, 33)


def test_candidates_that_differ_only_in_what_they_skip_share_their_weights() -> None:
    model, x = dg.nn.GatedMLP((20, 48, 5)).eval(), torch.randn(40, 20).relu()
    candidates = Candidates(lower_only_chain(model, x))
    plain = candidates.build(packed([LayerLayout("panels"), LayerLayout("panels")]))
    skipping = candidates.build(packed([LayerLayout("panels", skip_zeros=True), LayerLayout("panels")]))
    assert plain.weights is skipping.weights


@pytest.mark.parametrize("features", [(), (20,)])
def test_zeros_are_skipped_only_if_the_raw_input_has_some(features: tuple[int, ...]) -> None:
    normalize = dg.nn.Normalize(torch.rand(features) + 0.1, torch.rand(features) + 0.5)
    model = gated_mlp(dg.GateConfig(net="two-layer", block=16), normalize=normalize)
    lowered = lower_only_chain(model, torch.randn(64, 20).relu())
    assert LayerLayout("panels", skip_zeros=True) in layouts_to_try(lowered.layers, zeros=0.5)[0]
    assert LayerLayout("panels", skip_zeros=True) not in layouts_to_try(lowered.layers, zeros=0.0)[0]
