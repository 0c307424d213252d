"""Gated layers with their gates for 1 to 16 tokens, and how far `decode_ffn` is from the reference in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops import GateNet
from dynamicgate.ops.ffn import decode_ffn, reference
from dynamicgate.ops.gate_net import decide, logits

Given = dict[str, Any]  # the arguments of `decode_ffn`


def made(
    tokens: int,
    *,
    sizes: tuple[int, int, int] = (40, 90, 30),
    block: int = 20,
    opened: float = 0.4,
    rank: int = 0,
    hidden: str = "identity",
    tau: float | None = None,
    soft_width: float | None = None,
    activation: str = "relu",
    bias: bool = False,
    value: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Given:
    """Random ones, of inputs, units and outputs as in `sizes`; the cut lies between two logits, where none can flip."""
    D, N, outputs = sizes
    G = -(-N // block)
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=random, device=device) / shape[-1] ** 0.5).to(dtype)

    x_TD = normal(tokens, D) * D**0.5
    weights = (normal(rank, D), normal(G, rank)) if rank else (normal(G, D),)
    gate = GateNet(
        weights, tuple(normal(len(w)) if bias else None for w in weights), hidden, tau=tau, soft_width=soft_width
    )
    z = logits(x_TD.double(), gate).flatten().sort().values
    place = min(max(round(len(z) * (1 - opened)), 1), len(z) - 1) if len(z) > 1 else 0
    cut = (z[place] + z[place - 1]) / 2 if place else z[0] - 1
    return {
        "x_TD": x_TD,
        "gate": replace(gate, cut=cut.item()),
        "up_ND": normal(N, D),
        "down_ON": normal(outputs, N),
        "block": block,
        "activation": activation,
        "up_bias_N": normal(N) if bias else None,
        "down_bias_O": normal(outputs) if bias else None,
        "value_ND": normal(N, D) if value else None,
        "value_bias_N": normal(N) if bias and value else None,
    }


def with_gate(given: Given, **changes: Any) -> Given:
    """The same layer behind another gate."""
    return {**given, "gate": replace(given["gate"], **changes)}


def right(given: Given) -> Tensor:
    """The reference, in float64."""
    layer = {name: v.double() if isinstance(v, Tensor) else v for name, v in given.items() if name != "gate"}
    return reference(**layer, factor_TG=decide(logits(layer["x_TD"], given["gate"]), given["gate"]))


def error(given: Given) -> float:
    """Of `decode_ffn`, relative to the size of the right result unless that is 0."""
    expected = right(given)
    return ((decode_ffn(**given).double() - expected).norm() / (expected.norm() or 1.0)).item()
