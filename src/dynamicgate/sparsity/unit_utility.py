"""How useful hidden units are, and which of them continual backprop replaces (Dohare 2024).

For one network or for many at once: leading dimensions are those of the tensors given. Nothing here waits for a GPU.
Shapes in names: B rows, N units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

UTILITY_DECAY = 0.99


def corrected(running_N: Tensor, updates_N: Tensor) -> Tensor:
    """A running mean that began at 0, as a mean: divided by the weight of what it has seen so far."""
    return running_N / (1.0 - UTILITY_DECAY**updates_N).clamp(min=1.0 - UTILITY_DECAY)


def update_utility_(
    mean_N: Tensor, utility_N: Tensor, updates_N: Tensor, h_BN: Tensor, outgoing_N: Tensor, incoming_N: Tensor
) -> None:
    """See a batch: running means of activity and of |outgoing| x |h - mean h| / |incoming|, with mean sizes of weights.
    updates_N: how many batches a unit has seen since it was drawn."""
    updates_N.add_(1)
    mean_N.lerp_(h_BN.mean(-2), 1.0 - UTILITY_DECAY)
    apart_N = (h_BN - corrected(mean_N, updates_N).unsqueeze(-2)).abs().mean(-2)
    utility_N.lerp_(outgoing_N * apart_N / incoming_N.clamp(min=1e-12), 1.0 - UTILITY_DECAY)


def choose_useless_(due: Tensor, utility_N: Tensor, eligible_N: Tensor, rate: Tensor | float) -> Tensor:
    """Which units to replace now: a fraction `rate` of the eligible ones, least utility first. Fractions of a unit add
    up in `due` until they are a whole one."""
    due.add_(rate * eligible_N.sum(-1))
    count = due.floor()
    due.sub_(count)
    rank_N = utility_N.masked_fill(~eligible_N, math.inf).argsort(-1).argsort(-1)
    return (rank_N < count.unsqueeze(-1)) & eligible_N


def moved_to_bias(outgoing_NO: Tensor, mean_N: Tensor, chosen_N: Tensor) -> Tensor:
    """What units that are taken out gave to the next layer on average, [..., O]: its bias gets it, so that they are not
    missed."""
    given_N = torch.where(chosen_N, mean_N, 0.0).to(outgoing_NO)
    return (given_N.unsqueeze(-2) @ outgoing_NO).squeeze(-2)
