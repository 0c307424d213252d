"""A gate whose logits a test chooses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate import GateConfig, Site
from dynamicgate.gating import Gate
from dynamicgate.gating.gate import StaticLogits


def static_gate(logits: list[float] | Tensor, **config: Any) -> Gate:
    """A gate whose logits are these, whatever it reads."""
    logits = torch.as_tensor(logits, dtype=torch.float32)
    config.setdefault("block", 1)
    width = len(logits) * config["block"]
    gate = Gate(Site("out", ("in",), "in", width), GateConfig(kind="static", **config), features=3)
    assert isinstance(gate.net, StaticLogits)
    with torch.no_grad():
        gate.net.bias.copy_(logits)
    return gate
