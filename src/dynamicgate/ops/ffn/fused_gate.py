"""`fused_gate_activation` and its op: everything between the two products of a dense gated layer, in one pass.

Shapes in names: T tokens, N hidden units in G blocks (the last may be shorter), M columns of the first product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS, IN_TRITON, check_activation
from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.registration import kernels_run_on, register_for_inference
from dynamicgate.ops.gate_net import GateNet, decide

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "fused_gate_activation(Tensor product, Tensor? value, int units, int block, str activation, float cut, float? tau, "
    "float? soft_width, bool unbounded) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def fused_gate_activation(
    product_TM: Tensor,
    units: int,
    *,
    block: int,
    cut: float,
    tau: float | None = None,
    soft_width: float | None = None,
    unbounded: bool = False,
    activation: str = "relu",
    value_TN: Tensor | None = None,
) -> Tensor:
    """act(product[:, :units]) [* value], and 0 where the block of a unit is closed; for inference.

    product_TM: bfloat16, float16 or float32. Each row holds the units, then one logit for each block, then anything.
        A block is open where its logit is above `cut`. With `tau` or `soft_width`, open units are scaled, as
        `GateNet` says.
    """
    blocks = -(-units // block)
    if product_TM.dim() != 2 or product_TM.shape[1] < units + blocks:
        raise ValueError(f"expected [tokens, {units + blocks} or more], received {tuple(product_TM.shape)}")
    check_activation(activation, IN_TRITON)
    expected = (len(product_TM), units)
    if value_TN is not None and (value_TN.shape != expected or value_TN.dtype is not product_TM.dtype):
        raise ValueError(
            f"expected value_TN of shape {expected} in {product_TM.dtype}, received {tuple(value_TN.shape)} "
            f"in {value_TN.dtype}"
        )
    h_TN: Tensor = torch.ops.dynamicgate.fused_gate_activation(
        product_TM, value_TN, units, block, activation, cut, tau, soft_width, unbounded
    )
    return h_TN


def _activate(
    product: Tensor,
    value: Tensor | None,
    units: int,
    block: int,
    activation: str,
    cut: float,
    tau: float | None,
    soft_width: float | None,
    unbounded: bool,
) -> Tensor:
    if product.dtype in tune.DTYPES and kernels_run_on(product):
        from dynamicgate.ops.ffn.fused_gate_kernel import launch  # here, because it imports Triton

        with torch.cuda.device_of(product):
            return launch(product, value, units, block, activation, cut, tau, soft_width, unbounded)
    wide = product if product.dtype is torch.float64 else product.float()
    z_TG = wide[:, units : units - (-units // block)]
    factor_TG = decide(z_TG, GateNet((), (), cut=cut, tau=tau, soft_width=soft_width, unbounded=unbounded))
    factor_TN = factor_TG.repeat_interleave(block, dim=1)[:, :units]
    h_TN = ACTIVATIONS[activation].function(wide[:, :units])
    h_TN = h_TN if value is None else h_TN * value
    return torch.where(factor_TN != 0, h_TN * factor_TN, 0.0).to(product.dtype)


def _shape(product: Tensor, value: Any, units: int, *rest: Any) -> Tensor:
    return product.new_empty(product.shape[0], units)


register_for_inference(_library, "fused_gate_activation", _activate, _shape)
