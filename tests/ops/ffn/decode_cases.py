"""Gated layers with their gates for 1 to 16 tokens, and the error of `decode_ffn` against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops import GateNet
from dynamicgate.ops.ffn import FFNWeights, decode_ffn, decode_given, reference_ffn
from dynamicgate.ops.ffn.weights import map_weights
from dynamicgate.ops.gate_net import decide, logits

Given = dict[str, Any]  # the arguments of `decode_ffn`


def made(
    tokens: int,
    *,
    sizes: tuple[int, int, int] | None = None,
    block: int = 20,
    opened: float = 0.4,
    rank: int = 0,
    hidden: str = "identity",
    tau: float | None = None,
    soft_width: float | None = None,
    unbounded: bool = False,
    activation: str = "relu",
    bias: bool = False,
    value: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> Given:
    """Random arguments; `sizes` are inputs, units and outputs. The cut lies between two logits, so none can flip."""
    D, N, outputs = sizes or (40, 90 if block > 3 else 34, 30)  # the interpreter takes its time for each block
    G = -(-N // block)
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=random, device=device) / shape[-1] ** 0.5).to(dtype)

    x_TD = normal(tokens, D) * D**0.5
    maps = (normal(rank, D), normal(G, rank)) if rank else (normal(G, D),)
    biases = tuple(normal(len(w)) if bias else None for w in maps)
    gate = GateNet(maps, biases, hidden, tau=tau, soft_width=soft_width, unbounded=unbounded)
    z = logits(x_TD.double(), gate).flatten().sort().values
    place = min(max(round(len(z) * (1 - opened)), 1), len(z) - 1) if len(z) > 1 else 0
    cut = (z[place] + z[place - 1]) / 2 if place else z[0] - 1
    up, down = normal(N, D), normal(outputs, N)
    up_bias, down_bias = (normal(N), normal(outputs)) if bias else (None, None)
    value_weight, value_bias = normal(N, D) if value else None, normal(N) if bias and value else None
    return {
        "x_TD": x_TD,
        "gate": replace(gate, cut=cut.item()),
        "weights": FFNWeights(up, down, value_weight, up_bias, down_bias, value_bias),
        "block": block,
        "activation": activation,
    }


def with_gate(given: Given, **changes: Any) -> Given:
    """The same layer with another gate."""
    return {**given, "gate": replace(given["gate"], **changes)}


def with_weights(given: Given, **changes: Tensor | None) -> Given:
    """The same layer with other weights."""
    return {**given, "weights": given["weights"]._replace(**changes)}


def right(given: Given) -> Tensor:
    """The reference, in float64."""
    x_TD, gate, weights = given["x_TD"].double(), given["gate"], map_weights(given["weights"], Tensor.double)
    factor_TG = decide(logits(x_TD, gate), gate)
    return reference_ffn(x_TD, weights, factor_TG, block=given["block"], activation=given["activation"])


def error_given(given: Given, factor: float | None = None) -> float:
    """The same of `decode_given`, with the decisions of the gate times random weights, or the same factor for all."""
    x_TD, weights, block, activation = (given[name] for name in ("x_TD", "weights", "block", "activation"))
    factor_TG = decide(logits(x_TD, given["gate"]), given["gate"]).float()
    factor_TG = factor_TG * (torch.rand_like(factor_TG) + 0.5) if factor is None else torch.full_like(factor_TG, factor)
    expected = reference_ffn(
        x_TD.double(), map_weights(weights, Tensor.double), factor_TG.double(), block=block, activation=activation
    )
    found = decode_given(x_TD, factor_TG, weights, block=block, activation=activation).double()
    return ((found - expected).norm() / (expected.norm() or 1.0)).item()


def error(given: Given) -> float:
    """The error of `decode_ffn`, relative to the size of the right result unless that is 0."""
    expected = right(given)
    return ((decode_ffn(**given).double() - expected).norm() / (expected.norm() or 1.0)).item()
