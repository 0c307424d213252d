"""The layer on the kernels themselves, in Triton's interpreter. Run by test_ffn.py in a process of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.inference.gpu.candidates import STRATEGIES
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import find_ffns
from dynamicgate.inference.gpu.lower import lower_ffn
from dynamicgate.nn import ffn as room
from tests.nn.test_ffn import assert_alike, gated, outputs_and_gradients

SWIGLU = {"activation": "silu", "value": True}


@pytest.mark.parametrize("gradient", ["exact", "sparse"])
@pytest.mark.parametrize("options", [{}, SWIGLU], ids=["relu", "swiglu"])
def test_the_kernels_are_the_dense_layer(
    options: dict[str, Any], gradient: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = gated(dg.GateConfig(block=32, net="linear", open=0.5), gradient=gradient, **options)
    x = torch.randn(20, 12)
    y, theirs = outputs_and_gradients(layer, x)
    monkeypatch.setattr(room, "SKIPPING", ("cpu",))
    monkeypatch.setattr(room, "LEAST_WORK", 0)
    mine, found = outputs_and_gradients(layer, x)
    torch.testing.assert_close(mine, y, rtol=1e-5, atol=1e-5)
    if gradient == "sparse":  # what flows through the gate is another gradient, and its test in test_ffn.py
        theirs = {name: g for name, g in theirs.items() if ".gate." not in name and name != "x"}
    assert_alike(found, theirs, 2e-5)


def test_experts_on_the_kernels_are_the_dense_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    switch = dg.nn.Switch(8, 4, 32, 2, 0.8)
    nn.init.normal_(switch.down.gate.net.weight)
    x = torch.randn(18, 8)
    y, theirs = outputs_and_gradients(switch, x)
    monkeypatch.setattr(room, "SKIPPING", ("cpu",))
    monkeypatch.setattr(room, "LEAST_WORK", 0)
    mine, found = outputs_and_gradients(switch, x)
    torch.testing.assert_close(mine, y, rtol=1e-5, atol=1e-5)
    assert_alike(found, theirs, 2e-5)


@pytest.mark.parametrize("options", [{}, SWIGLU], ids=["relu", "swiglu"])
def test_the_ways_of_a_plan_agree(options: dict[str, Any]) -> None:
    layer = gated(dg.GateConfig(block=32, net="linear", open=0.5), **options).eval()
    (found,), _ = find_ffns(layer, dg.named_gates(layer))
    planned = FeedForward(lower_ffn(found.ffns[0]))
    x = torch.randn(5, 12)
    with torch.no_grad():
        y = layer(x)
        for name in ("dense", "dense, fused", "gated", "decode"):
            torch.testing.assert_close(STRATEGIES[name](planned, x), y, rtol=1e-5, atol=1e-5)
