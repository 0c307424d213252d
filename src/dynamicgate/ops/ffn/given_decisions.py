"""`decode_given` and its op: a gated feed-forward layer for 1 to 64 tokens whose gates have decided. See decode.md.

For gates that the kernel of `decode_ffn` does not know (routers, shared weights), and for more tokens than it takes.

Shapes in names: T tokens, D inputs, N hidden units in G blocks (the last may be shorter), O outputs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.reference import reference_ffn
from dynamicgate.ops.ffn.registration import kernels_run_on, register_for_inference
from dynamicgate.ops.ffn.weights import FFNWeights, check_weights

MOST_TOKENS = 64

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "decode_given(Tensor x, Tensor factor, Tensor up, Tensor down, Tensor? value, Tensor? up_bias, "
    "Tensor? down_bias, Tensor? value_bias, int block, str activation) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def decode_given(
    x_TD: Tensor, factor_TG: Tensor, weights: FFNWeights, *, block: int, activation: str = "relu"
) -> Tensor:
    """`gated_ffn` for inference on 1 to 64 tokens: a block is read once, if any token opens it, and the same call gives
    the same bits.

    x_TD: with any leading dimensions. It and the weights are bfloat16, float16 or float32, all in the same dtype.
    factor_TG: one for each token and block: 0 closes the block, anything else multiplies it.
    """
    rows, factor = x_TD.reshape(-1, x_TD.shape[-1]), factor_TG.reshape(-1, factor_TG.shape[-1])
    if not 1 <= rows.shape[0] <= MOST_TOKENS:
        raise ValueError(f"expected 1 to {MOST_TOKENS} tokens, received {rows.shape[0]}: gated_ffn takes more")
    check_weights(rows, weights, block, activation)
    expected = (rows.shape[0], -(-weights.up.shape[0] // block))
    if factor.shape != expected:
        raise ValueError(f"expected factor_TG of shape {expected}, received {tuple(factor.shape)}")
    y: Tensor = torch.ops.dynamicgate.decode_given(rows, factor.float(), *weights, block, activation)
    return y.reshape(*x_TD.shape[:-1], weights.down.shape[0])


def _decode(x: Tensor, factor: Tensor, *rest: Any) -> Tensor:
    weights, (block, activation) = FFNWeights(*rest[:6]), rest[6:]
    if x.dtype in tune.DTYPES and kernels_run_on(x):
        from dynamicgate.ops.ffn.decode_launch import launch_given  # here, because it imports Triton

        with torch.cuda.device_of(x):
            return launch_given(x, factor, weights, block, activation)
    return reference_ffn(x, weights, factor, block=block, activation=activation)


def _shape(x: Tensor, factor: Tensor, *rest: Any) -> Tensor:
    return x.new_empty(x.shape[0], FFNWeights(*rest[:6]).down.shape[0])


register_for_inference(_library, "decode_given", _decode, _shape)
