"""The reference implementation: block after block in plain torch, in the dtype of `x`; gradients by autograd."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.ffn.weights import FFNWeights


def reference_ffn(
    x_TD: Tensor,
    weights: FFNWeights,
    factor_TG: Tensor,
    *,
    block: int,
    activation: str = "relu",
    gate_gradient: str = "sparse",
) -> Tensor:
    """y = sum over the open blocks of factor * (act(up x) [* value x]) down + bias. Closed blocks are not computed.

    gate_gradient="dense" computes every block for every token, so that closed factors get a gradient too.
    """
    up_ND, down_ON, value_ND, up_bias_N, down_bias_O, value_bias_N = weights
    units_G = [slice(start, start + block) for start in range(0, up_ND.shape[0], block)]
    y_TO = x_TD.new_zeros(x_TD.shape[0], down_ON.shape[0])
    for g, units in enumerate(units_G):
        opened = factor_TG[:, g].detach() != 0
        rows_R = (torch.ones_like(opened) if gate_gradient == "dense" else opened).nonzero().squeeze(1)
        x_RD = x_TD[rows_R]
        h_RB = F.linear(x_RD, up_ND[units], None if up_bias_N is None else up_bias_N[units])
        h_RB = ACTIVATIONS[activation].function(h_RB)
        if value_ND is not None:
            h_RB = h_RB * F.linear(x_RD, value_ND[units], None if value_bias_N is None else value_bias_N[units])
        h_RB = h_RB * factor_TG[rows_R, g].to(h_RB.dtype)[:, None]
        y_TO = y_TO.index_add(0, rows_R, F.linear(h_RB, down_ON[:, units]))
    return y_TO if down_bias_O is None else y_TO + down_bias_O
