"""Block-gated feed-forward layers on the GPU: what is closed is neither read nor computed. See README.md here.

Shapes in names: T tokens, D inputs, N hidden units in G blocks (the last may be ragged), O outputs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from dynamicgate.activations import IN_TRITON, check_activation
from dynamicgate.ops.ffn.decode import decode_ffn
from dynamicgate.ops.ffn.fused_gate import close_hidden
from dynamicgate.ops.ffn.reference import reference
from dynamicgate.ops.ffn.registration import run

__all__ = ["close_hidden", "decode_ffn", "gated_ffn", "reference"]


def gated_ffn(
    x_TD: Tensor,
    up_ND: Tensor,
    down_ON: Tensor,
    factor_TG: Tensor,
    *,
    block: int,
    activation: str = "relu",
    up_bias_N: Tensor | None = None,
    down_bias_O: Tensor | None = None,
    value_ND: Tensor | None = None,
    value_bias_N: Tensor | None = None,
    gradient: Literal["sparse", "exact"] = "sparse",
    in_order: bool = False,
) -> Tensor:
    """(factor * act(x up' + b) [* (x value' + b)]) down' + b, skipping blocks of hidden units whose factor is 0.

    x_TD: any leading dimensions; weights as in `nn.Linear`. bfloat16, float16 or float32, the same for all.
    factor_TG: one for each token and block of `block` units: 0 is closed, anything else multiplies. Or bool: 0 and 1.
    activation: relu, gelu (exact), silu or identity; SwiGLU is silu with `value_ND`.
    gradient: differentiable in everything. "sparse": closed factors get gradient 0, and nothing is computed for them.
        "exact": they get dL/dfactor as if they were open, which straight-through training of hard gates needs and which
        costs the dense up projection and its backward half. All other gradients are the same in both.
    in_order: add up a token's blocks in one order, and round the sum once: the same bits every time, and in 16 bits a
        smaller error, for some percent of the time. `torch.use_deterministic_algorithms(True)` asks for it everywhere.
    """
    rows = x_TD.reshape(-1, x_TD.shape[-1])
    factor = factor_TG.reshape(-1, factor_TG.shape[-1])
    tensors = [rows, up_ND, down_ON, up_bias_N, down_bias_O, value_ND, value_bias_N]
    if torch.is_autocast_enabled(rows.device.type):
        dtype = torch.get_autocast_dtype(rows.device.type)
        tensors = [t if t is None else t.to(dtype) for t in tensors]
    _check(tensors, factor, block, activation, gradient)
    factor = factor if factor.dtype is torch.bool else factor.float()
    return run(tensors, factor, block, activation, gradient, in_order).reshape(*x_TD.shape[:-1], down_ON.shape[0])


def _check(tensors: list[Tensor | None], factor_TG: Tensor, block: int, activation: str, gradient: str) -> None:
    """Raise ValueError for what does not fit together."""
    x_TD, up_ND, down_ON, up_bias_N, down_bias_O, value_ND, value_bias_N = tensors
    assert x_TD is not None
    assert up_ND is not None
    assert down_ON is not None
    T, D = x_TD.shape
    N, O = up_ND.shape[0], down_ON.shape[0]
    if block < 1:
        raise ValueError(f"block must be 1 or more, received {block}")
    check_activation(activation, IN_TRITON)
    if gradient not in ("sparse", "exact"):
        raise ValueError(f"gradient must be sparse or exact, received {gradient!r}")
    if value_bias_N is not None and value_ND is None:
        raise ValueError("value_bias_N needs value_ND, received None")
    expected = {
        "up_ND": (up_ND, (N, D)),
        "down_ON": (down_ON, (O, N)),
        "factor_TG": (factor_TG, (T, -(-N // block))),
        "up_bias_N": (up_bias_N, (N,)),
        "down_bias_O": (down_bias_O, (O,)),
        "value_ND": (value_ND, (N, D)),
        "value_bias_N": (value_bias_N, (N,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(f"expected {name} of shape {shape}, received {tuple(tensor.shape)}")
        if name != "factor_TG" and tensor.dtype != x_TD.dtype:
            raise ValueError(f"expected {name} in {x_TD.dtype} like x, received {tensor.dtype}")
