"""Matrix products of groups of rows with a matrix each, as mixtures of experts use them, for torch's FLOP counter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Shape = Sequence[int]


def grouped_formulas() -> dict[Any, Any]:
    """By operation: its FLOPs. torch counts none of them."""
    found: dict[Any, Any] = {torch.ops.aten._grouped_mm: _grouped}
    fallback = getattr(torch.ops.transformers, "grouped_mm_fallback", None)  # of Hugging Face, where torch has none
    return found if fallback is None else {**found, fallback: _grouped}


def _grouped(left: Shape, right: Shape, *_args: Any, **_kwargs: Any) -> int:
    """Two for each product of numbers. Groups are of the rows on the left, of the columns on the right, or of what is
    summed over: each of these is there once."""
    if len(left) == 3 and len(right) == 3:
        return 2 * left[0] * left[1] * left[2] * right[2]
    return 2 * left[-2] * left[-1] * right[-1]
