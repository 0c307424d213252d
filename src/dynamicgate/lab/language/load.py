"""How evenly tokens use the blocks of gated layers: a penalty, and what to report.

Shapes in names: B rows (any leading dimensions), G blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.gating.gate import Decision
from dynamicgate.gating.recording import Usage

RARELY = 1e-3  # open for fewer tokens than this, a block might as well not be there


def load_penalty(used: Usage) -> Tensor:
    """Blocks times the sum over blocks of their fraction of the open decisions times their fraction of the
    probabilities: 1 where all blocks are used alike, more where few do all the work. The mean over layers."""
    return torch.stack([_of_layer(used[site]) for site in used]).mean()


def _of_layer(decision: Decision) -> Tensor:
    load_G = decision.open.flatten(0, -2).mean(0)
    importance_G = decision.p.flatten(0, -2).mean(0)
    load_G = load_G / load_G.sum().clamp_min(1e-9)
    return len(load_G) * (load_G.detach() * importance_G / importance_G.sum()).sum()


def rarely_open(open_G: Tensor) -> float:
    """The fraction of blocks that hardly any token opens, from their open rates."""
    return float((open_G < RARELY).float().mean())
