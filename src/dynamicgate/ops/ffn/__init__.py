"""Block-gated feed-forward layers on the GPU: closed blocks are neither read nor computed. See README.md here.

Shapes in names: T tokens, D inputs, N hidden units in G blocks (the last may be shorter), O outputs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dynamicgate.ops.ffn.decode import decode_ffn
from dynamicgate.ops.ffn.fused_gate import fused_gate_activation
from dynamicgate.ops.ffn.given_decisions import decode_given
from dynamicgate.ops.ffn.reference import reference_ffn
from dynamicgate.ops.ffn.registration import run_ffn
from dynamicgate.ops.ffn.weights import FFNWeights, check_weights, map_weights

__all__ = ["FFNWeights", "decode_ffn", "decode_given", "fused_gate_activation", "gated_ffn", "reference_ffn"]


def gated_ffn(
    x_TD: Tensor,
    weights: FFNWeights,
    factor_TG: Tensor,
    *,
    block: int,
    activation: str = "relu",
    gate_gradient: Literal["sparse", "dense"] = "sparse",
    deterministic: bool = False,
) -> Tensor:
    """(factor * act(x up' + b) [* (x value' + b)]) down' + b, skipping blocks of hidden units whose factor is 0.

    x_TD: with any leading dimensions. It and the weights are bfloat16, float16 or float32, all in the same dtype.
    factor_TG: one for each token and block of `block` units: 0 closes the block, anything else multiplies it. A bool
        tensor counts as 0 and 1.
    activation: relu, relu2, gelu (exact), gelu_tanh, quick_gelu, silu or identity. SwiGLU is silu with `weights.value`.
    gate_gradient: the gradient of closed factors; all other gradients are the same in both cases. "sparse": it is 0,
        and nothing is computed for closed blocks. "dense": it is dL/dfactor as if the block were open, which
        straight-through training of hard gates needs. That costs the dense up projection and half of its backward pass.
    deterministic: add up a token's blocks in a fixed order and round the sum once. The result is then the same bits
        every time, and in 16 bits more accurate, but takes a few percent longer.
        `torch.use_deterministic_algorithms(True)` has the same effect on every call.
    """
    rows = x_TD.reshape(-1, x_TD.shape[-1])
    factor = factor_TG.reshape(-1, factor_TG.shape[-1])
    if torch.is_autocast_enabled(rows.device.type):
        dtype = torch.get_autocast_dtype(rows.device.type)
        rows, weights = rows.to(dtype), map_weights(weights, lambda t: t.to(dtype))
    if gate_gradient not in ("sparse", "dense"):
        raise ValueError(f"gate_gradient must be sparse or dense, received {gate_gradient!r}")
    check_weights(rows, weights, block, activation)
    expected = (rows.shape[0], -(-weights.up.shape[0] // block))
    if factor.shape != expected:
        raise ValueError(f"expected factor_TG of shape {expected}, received {tuple(factor.shape)}")
    factor = factor if factor.dtype is torch.bool else factor.float()
    y_TO = run_ffn(rows, factor, weights, block, activation, gate_gradient, deterministic)
    return y_TO.reshape(*x_TD.shape[:-1], weights.down.shape[0])
