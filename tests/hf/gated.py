"""Gates in a known state: all open, or open for some inputs and closed for others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg


@torch.no_grad()
def open_all_(model: nn.Module) -> nn.Module:
    """Every gate is open for every input: the networks give the bias alone."""
    for gate in dg.named_gates(model).values():
        for layer in gate.net.modules():
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.weight)
    return model


@torch.no_grad()
def spread_(model: nn.Module, *, scale: float = 2.0) -> nn.Module:
    """Logits around the threshold, so that about half of the blocks are open, other ones for other tokens."""
    drawn = torch.Generator().manual_seed(5)
    for gate in dg.named_gates(model).values():
        for name, value in gate.net.named_parameters():
            size = 0.5 if name.endswith("bias") else scale
            value.copy_(torch.randn(value.shape, generator=drawn) * size)
    return model


@torch.no_grad()
def close_(model: nn.Module, block: int) -> nn.Module:
    """One block of every gate is closed for every input, the others are open."""
    open_all_(model)
    for gate in dg.named_gates(model).values():
        gate.bias[block] = -100.0
    return model


def run(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """The logits of one forward pass."""
    with torch.no_grad():
        out: Any = model(**inputs)
    return out.logits


def open_rates(model: nn.Module, inputs: dict[str, Tensor]) -> dict[str, float]:
    """How many blocks of each gate are open, as a fraction."""
    with dg.usage(model) as used:
        run(model, inputs)
    return {name: float(rate) for name, rate in used.mean_open().items()}


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer as [outputs, inputs], sharing memory with it."""
    weight: Any = layer.weight
    return weight.data if isinstance(layer, nn.Linear) else weight.data.T
