"""Balanced clustering: groups of equal size of units that are active for the same tokens.

Shapes in names: B tokens, N units.
"""

from __future__ import annotations

import torch
from torch import Tensor

POWER_ITERATIONS = 30


def balanced_order(activity_NB: Tensor, size: int) -> Tensor:
    """An order of the units in which every run of `size` of them is active together.

    Recursive halving: the units are sorted along the first principal component of their activity and cut in the middle,
    at a multiple of `size`, until a group is left. What does not fill a group comes last.
    """
    groups: list[Tensor] = []
    pending = [torch.arange(len(activity_NB), device=activity_NB.device)]
    while pending:
        units = pending.pop()
        if len(units) <= size:
            groups.append(units)
            continue
        along = first_component(activity_NB[units])
        units = units[torch.sort(along, stable=True).indices]
        middle = -(-len(units) // size) // 2 * size
        pending += [units[middle:], units[:middle]]  # the last one is halved first, so that neighbours stay neighbours
    return torch.cat(groups)


def first_component(values_NB: Tensor) -> Tensor:
    """The position of each row along the direction in which the rows differ most, by power iteration."""
    centred_NB = values_NB - values_NB.mean(0)
    along_N = centred_NB.square().sum(1)
    along_N = along_N - along_N.mean() + 1e-3 * torch.linspace(-1.0, 1.0, len(along_N)).to(along_N) * along_N.mean()
    for _ in range(POWER_ITERATIONS):
        along_N = centred_NB @ (along_N @ centred_NB)
        along_N = along_N / along_N.norm().clamp_min(torch.finfo(along_N.dtype).tiny)
    return along_N
