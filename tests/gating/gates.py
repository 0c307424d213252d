"""Gates whose logits a test chooses, alone and in a network."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
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


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def set_logits(model: nn.Module, site: str, values: Tensor | float) -> None:
    """Make a gate decide the same for every input, whatever its kind."""
    net = dg.named_gates(model)[site].net
    last = net[-1] if isinstance(net, nn.Sequential) else net
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        last.bias.copy_(torch.as_tensor(values).expand_as(last.bias))
