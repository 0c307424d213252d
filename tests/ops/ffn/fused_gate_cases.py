"""Inputs of `fused_gate_activation`, and the error of its results against float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.ffn import fused_gate_activation

SCALES = ({}, {"tau": 0.7}, {"soft_width": 0.9}, {"soft_width": 0.9, "unbounded": True})
SCALE_NAMES = ["hard", "tau", "soft_width", "unbounded"]
SIZES = ((1, 1, 1), (3, 16, 16), (5, 33, 16), (2, 4100, 64), (17, 130, 1), (4, 96, 200))  # tokens, units, block
IN_FLOAT32 = 16 * 2**-24  # an activation, a factor and two products make some 13 roundings, on a GPU in the worst case


def made(tokens: int, units: int, block: int, *, value: bool = False, unused: int = 3, **more: Any) -> dict[str, Any]:
    """The arguments; the columns after the logits are NaN, because they must not be read."""
    torch.manual_seed(tokens + units)
    blocks = -(-units // block)
    options = {key: more.pop(key) for key in ("dtype", "device") if key in more}
    product_TM = torch.randn(tokens, units + blocks + unused, **options)
    product_TM[:, units + blocks :] = torch.nan
    value_TN = torch.randn(tokens, units).to(product_TM) if value else None
    return {"product_TM": product_TM, "units": units, "block": block, "cut": 0.1, "value_TN": value_TN, **more}


def in_float64(given: dict[str, Any]) -> dict[str, Any]:
    """The same arguments for the reference."""
    return {name: v.cpu().double() if isinstance(v, Tensor) else v for name, v in given.items()}


def error(given: dict[str, Any]) -> float:
    """The largest difference from the reference in float64."""
    return float(
        (fused_gate_activation(**given).cpu().double() - fused_gate_activation(**in_float64(given))).abs().max()
    )


def allowed(exact: dict[str, Any], right_TN: Tensor, dtype: torch.dtype) -> Tensor:
    """How far rounding may take each number from `right_TN`, which `exact` gives in float64.

    The kernel computes in float32: some roundings of the size of the terms. Where they cancel, as in 1 + erf, that is
    more than the size of the result. A closed unit is 0. Then it rounds once, to `dtype`.
    """
    units, cut, soft_width = exact["units"], exact["cut"], exact.get("soft_width")
    u_TN = exact["product_TM"][:, :units]
    blocks = -(-units // exact["block"])
    z_TN = exact["product_TM"][:, units : units + blocks].repeat_interleave(exact["block"], dim=1)[:, :units]
    size_TN = u_TN.abs() + ACTIVATIONS[exact.get("activation", "relu")].function(u_TN).abs()
    if exact["value_TN"] is not None:
        size_TN = size_TN * exact["value_TN"].abs()
    if soft_width is not None:
        rises = (z_TN - cut < soft_width) | exact.get("unbounded", False)
        size_TN = size_TN * torch.where(rises, (z_TN.abs() + abs(cut)) / soft_width, 1.0)
    size_TN = size_TN.masked_fill(~(z_TN > cut), 0.0)
    last = torch.finfo(dtype)
    once_TN = (right_TN.abs() * last.eps).clamp(min=last.smallest_normal * last.eps) / 2
    return IN_FLOAT32 * size_TN + once_TN
