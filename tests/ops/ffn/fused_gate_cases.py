"""Inputs of `fused_gate_activation`, and the error of its results against float64."""

from __future__ import annotations

from typing import Any

import torch

from dynamicgate.ops.ffn import fused_gate_activation

SCALES = ({}, {"tau": 0.7}, {"soft_width": 0.9})
SIZES = ((1, 1, 1), (3, 16, 16), (5, 33, 16), (2, 4100, 64), (17, 130, 1), (4, 96, 200))  # tokens, units, block


def made(tokens: int, units: int, block: int, *, value: bool = False, unused: int = 3, **more: Any) -> dict[str, Any]:
    """The arguments; the columns after the logits are NaN, because they must not be read."""
    torch.manual_seed(tokens + units)
    blocks = -(-units // block)
    options = {key: more.pop(key) for key in ("dtype", "device") if key in more}
    product_TM = torch.randn(tokens, units + blocks + unused, **options)
    product_TM[:, units + blocks :] = torch.nan
    value_TN = torch.randn(tokens, units).to(product_TM) if value else None
    return {"product_TM": product_TM, "units": units, "block": block, "cut": 0.1, "value_TN": value_TN, **more}


def error(given: dict[str, Any]) -> float:
    """The largest difference from the reference in float64."""
    names = ("product_TM", "value_TN")
    exact = {k: v.cpu().double() if k in names and v is not None else v for k, v in given.items()}
    return float((fused_gate_activation(**given).cpu().double() - fused_gate_activation(**exact)).abs().max())
