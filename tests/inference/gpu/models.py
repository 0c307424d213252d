"""Models with gated feed-forward layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.gpu.ffn import FeedForward
from tests.inference.models import spread_logits_

Compile = Callable[..., CompiledModel]
GATES = {
    "linear": dg.GateConfig(net="linear", block=32),
    "ragged": dg.GateConfig(net="linear", block=40),
    "low-rank": dg.GateConfig(net="low-rank", rank=3, block=32),
    "two-layer": dg.GateConfig(net="two-layer", rank=5, block=32),
    "top-k": dg.GateConfig(block=32, top_k=2),
    "always open": dg.GateConfig(block=32, always_open=1, theta=0.7),
    "scaled": dg.GateConfig(block=32, scale=True, tau=0.6),
    "threshold": dg.GateConfig(block=32, theta=0.8, tau=0.5),
    "soft_width": dg.GateConfig(block=32, theta=0.6, tau=0.5, soft_width=1.5),
    "router": dg.GateConfig(kind="router", block=32, top_k=2),
    "softmax": dg.GateConfig(block=32, scale="softmax", tau=0.7),
    "relu": dg.GateConfig(block=32, scale="relu", tau=0.7),
    "static": dg.GateConfig(kind="static", block=32),
    "units": dg.GateConfig(block=1),
}


def model_with(config: dg.GateConfig, **options: Any) -> nn.Sequential:
    """A feed-forward layer between others, whose gate is open for some inputs and closed for others."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.LayerNorm(20), dg.nn.FFN(20, 96, 24, **options), nn.ReLU(), nn.Linear(24, 5))
    dg.gate_(model, config, where="1.down")
    spread_logits_(model)
    return model.eval()


def feed_forwards(compiled: CompiledModel) -> list[FeedForward]:
    """The layers that were replaced."""
    return [m for m in compiled.modules() if isinstance(m, FeedForward)]
