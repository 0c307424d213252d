"""Inputs of `close_hidden`, and how far its results are from float64."""

from __future__ import annotations

from typing import Any

import torch

from dynamicgate.ops.ffn import close_hidden

SCALES = ({}, {"tau": 0.7}, {"soft_width": 0.9})
SIZES = ((1, 1, 1), (3, 16, 16), (5, 33, 16), (2, 4100, 64), (17, 130, 1), (4, 96, 200))  # tokens, units, block


def made(tokens: int, units: int, block: int, *, value: bool = False, unused: int = 3, **more: Any) -> dict[str, Any]:
    """What `close_hidden` takes; nobody may read the columns behind the logits, which are NaN."""
    torch.manual_seed(tokens + units)
    blocks = -(-units // block)
    both_TM = torch.randn(tokens, units + blocks + unused, **{k: more.pop(k) for k in ("dtype", "device") if k in more})
    both_TM[:, units + blocks :] = torch.nan
    value_TN = torch.randn(tokens, units).to(both_TM) if value else None
    return {"both_TM": both_TM, "units": units, "block": block, "cut": 0.1, "value_TN": value_TN, **more}


def error(given: dict[str, Any]) -> float:
    """Largest difference to the reference in float64."""
    names = ("both_TM", "value_TN")
    exact = {k: v.cpu().double() if k in names and v is not None else v for k, v in given.items()}
    return float((close_hidden(**given).cpu().double() - close_hidden(**exact)).abs().max())
