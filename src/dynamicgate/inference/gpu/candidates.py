"""The strategies to run a gated feed-forward layer, as functions of the layer and its input, by name.

Shapes in names: T tokens, D features, N hidden units, G blocks of units, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.gate import scale_units
from dynamicgate.inference.gates import GateInTorch
from dynamicgate.ops.ffn import FFNWeights, decode_ffn, decode_given, fused_gate_activation, gated_ffn, given_decisions
from dynamicgate.ops.ffn import decode as decode_module
from dynamicgate.ops.ffn.tune import LEAST_BLOCK

UNGATED = "ungated"
COMPILED = ", compiled"
FUSED = "dense, fused"
GIVEN = "decode after the gate"
MOST_TOKENS = {"decode": decode_module.MOST_TOKENS, GIVEN: given_decisions.MOST_TOKENS}
Strategy = Callable[[Any, Tensor], Tensor]


def candidates_for(layer: Any, tokens: int) -> list[str]:
    """The names of the strategies that are worth timing for that many tokens."""
    found = ["dense", f"dense{COMPILED}"]
    if layer.fused_weight is not None and isinstance(layer.gate, GateInTorch) and not layer.gate.top_k:
        found += [FUSED]
    if layer.gate is not None and layer.block >= LEAST_BLOCK:
        found += ["gated", f"gated{COMPILED}"]
    if layer.gate is not None and layer.gate.net is not None and tokens <= MOST_TOKENS["decode"]:
        found += ["decode"]
    if layer.gate is not None and tokens <= MOST_TOKENS[GIVEN]:
        found += [GIVEN, f"{GIVEN}{COMPILED}"]
    return found


def most_tokens(name: str) -> int | None:
    """The most tokens that a strategy can run; None for any number."""
    return MOST_TOKENS.get(name.removesuffix(COMPILED))


def ungated(layer: Any, x_TD: Tensor) -> Tensor:
    """The layer without its gate: it computes something else, and is what one would run otherwise."""
    return F.linear(_hidden(layer, x_TD), layer.down_weight, layer.down_bias)


def dense(layer: Any, x_TD: Tensor) -> Tensor:
    """All units, closed ones multiplied by zero."""
    if layer.gate is None:
        return ungated(layer, x_TD)
    if layer.fused_weight is None:
        h_TN, factor_TG = _hidden(layer, x_TD), layer.gate(x_TD)
    else:
        N = len(layer.up_weight)
        fused_TM = F.linear(x_TD, layer.fused_weight, layer.fused_bias)
        h_TN, factor_TG = (
            ACTIVATIONS[layer.activation].function(fused_TM[:, :N]),
            layer.gate.factors(fused_TM[:, N : N + layer.blocks].float()),
        )
        h_TN = h_TN if layer.value_weight is None else h_TN * F.linear(x_TD, layer.value_weight, layer.value_bias)
    return F.linear(scale_units(h_TN, factor_TG, layer.block), layer.down_weight, layer.down_bias)


def fused(layer: Any, x_TD: Tensor) -> Tensor:
    """All units, by the matrix products of eager torch, which add their biases, and one kernel of ours between them."""
    value_TN = None if layer.value_weight is None else F.linear(x_TD, layer.value_weight, layer.value_bias)
    h_TN = fused_gate_activation(
        F.linear(x_TD, layer.fused_weight, layer.fused_bias), len(layer.up_weight), block=layer.block,
        cut=layer.gate.threshold, tau=layer.gate.tau, soft_width=layer.gate.soft_width, unbounded=layer.gate.unbounded,
        activation=layer.activation, value_TN=value_TN,
    )  # fmt: skip
    return F.linear(h_TN, layer.down_weight, layer.down_bias)


def gated(layer: Any, x_TD: Tensor) -> Tensor:
    """Open blocks only; the gate decides in torch. Summed in a fixed order: a plan gives the same bits every time."""
    options = {"block": layer.block, "activation": layer.activation}
    return gated_ffn(x_TD, _weights(layer), layer.gate(x_TD), deterministic=True, **options)


def decode(layer: Any, x_TD: Tensor) -> Tensor:
    """Open blocks only, for a few tokens; the gate is part of the kernel."""
    return decode_ffn(x_TD, layer.gate.net, _weights(layer), block=layer.block, activation=layer.activation)


def decode_after_gate(layer: Any, x_TD: Tensor) -> Tensor:
    """Open blocks only, for a few tokens; the gate decides in torch."""
    return decode_given(x_TD, layer.gate(x_TD), _weights(layer), block=layer.block, activation=layer.activation)


STRATEGIES: dict[str, Strategy] = {
    UNGATED: ungated,
    "dense": dense,
    FUSED: fused,
    "gated": gated,
    "decode": decode,
    GIVEN: decode_after_gate,
}


@cache
def strategy(name: str) -> Strategy:
    """The strategy of this name, under torch.compile if the name says so."""
    plain = STRATEGIES[name.removesuffix(COMPILED)]
    return torch.compile(plain) if name.endswith(COMPILED) else plain


def _hidden(layer: Any, x_TD: Tensor) -> Tensor:
    h_TN = ACTIVATIONS[layer.activation].function(F.linear(x_TD, layer.up_weight, layer.up_bias))
    return h_TN if layer.value_weight is None else h_TN * F.linear(x_TD, layer.value_weight, layer.value_bias)


def _weights(layer: Any) -> FFNWeights:
    biases = (layer.up_bias, layer.down_bias, layer.value_bias)
    return FFNWeights(layer.up_weight, layer.down_weight, layer.value_weight, *biases)
