"""What lies between the two products of a dense layer with a gate, in one pass: `close_hidden` and its op.

Shapes in names: T tokens, N hidden units in G blocks (the last may be ragged), M columns of the first product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS, IN_TRITON, check_activation
from dynamicgate.ops.ffn.decode import DTYPES
from dynamicgate.ops.ffn.registration import register_for_inference, serves
from dynamicgate.ops.gate_net import GateNet, decide

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "close_hidden(Tensor both, Tensor? value, int units, int block, str activation, float cut, float? tau, float? soft_width)"
    " -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def close_hidden(
    both_TM: Tensor,
    units: int,
    *,
    block: int,
    cut: float,
    tau: float | None = None,
    soft_width: float | None = None,
    activation: str = "relu",
    value_TN: Tensor | None = None,
) -> Tensor:
    """act(both[:, :units]) [* value], and 0 where a unit's block is closed, for inference.

    both_TM: a product in bfloat16, float16 or float32 whose rows hold the units, then a logit for each block, and then
        anything. A block is open where its logit is above `cut`; with `tau` or `soft_width`, open units are scaled.
    """
    blocks = -(-units // block)
    if both_TM.dim() != 2 or both_TM.shape[1] < units + blocks:
        raise ValueError(f"expected [tokens, {units + blocks} or more], received {tuple(both_TM.shape)}")
    check_activation(activation, IN_TRITON)
    if value_TN is not None and (value_TN.shape != (len(both_TM), units) or value_TN.dtype is not both_TM.dtype):
        raise ValueError(
            f"expected value_TN of shape {(len(both_TM), units)} in {both_TM.dtype}, received {tuple(value_TN.shape)} "
            f"in {value_TN.dtype}"
        )
    h_TN: Tensor = torch.ops.dynamicgate.close_hidden(both_TM, value_TN, units, block, activation, cut, tau, soft_width)
    return h_TN


def _close(both: Tensor, value: Tensor | None, units: int, block: int, activation: str, cut: float,
           tau: float | None, soft_width: float | None) -> Tensor:  # fmt: skip
    if both.dtype in DTYPES and serves(both):
        from dynamicgate.ops.ffn.fused_gate_kernel import launch

        with torch.cuda.device_of(both):
            return launch(both, value, units, block, activation, cut, tau, soft_width)
    wide = both if both.dtype is torch.float64 else both.float()
    z_TG = wide[:, units : units - (-units // block)]
    factor_TG = decide(z_TG, GateNet((), (), cut=cut, tau=tau, soft_width=soft_width))
    factor_TN = factor_TG.repeat_interleave(block, dim=1)[:, :units]
    h_TN = ACTIVATIONS[activation].function(wide[:, :units])
    h_TN = h_TN if value is None else h_TN * value
    return torch.where(factor_TN != 0, h_TN * factor_TN, 0.0).to(both.dtype)


def _shape(both: Tensor, value: Any, units: int, *rest: Any) -> Tensor:
    return both.new_empty(both.shape[0], units)


register_for_inference(_library, "close_hidden", _close, _shape)
