"""How evenly tokens use the blocks of gated layers: a penalty, and what to report.

Shapes in names: B rows (any leading dimensions), G blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.budget.penalties import load_balance
from dynamicgate.distributed import RowMeans
from dynamicgate.gating.recording import Usage

RARELY = 1e-3  # open for fewer tokens than this, a block might as well not be there


def load_penalty(used: Usage) -> Tensor:
    """The mean over layers of `load_balance`."""
    means = RowMeans(next(iter(used.values())).p.flatten(0, -2))
    return torch.stack([load_balance(used[site], means) for site in used]).mean()


def rarely_open(open_G: Tensor) -> float:
    """The fraction of blocks that hardly any token opens, from their open rates."""
    return float((open_G < RARELY).float().mean())
