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
    products_NN = activity_NB @ activity_NB.T  # all that the components of any part of the units depend on
    groups: list[Tensor] = []
    pending = [torch.arange(len(activity_NB), device=activity_NB.device)]
    while pending:
        units = pending.pop()
        if len(units) <= size:
            groups.append(units)
            continue
        along = first_component(products_NN[units][:, units])
        units = units[torch.sort(along, stable=True).indices]
        middle = -(-len(units) // size) // 2 * size
        pending += [units[middle:], units[:middle]]  # the last one is halved first, so that neighbours stay neighbours
    return torch.cat(groups)


def first_component(products_NN: Tensor) -> Tensor:
    """The position of each unit along the direction in which units differ most, by power iteration."""
    mean_N = products_NN.mean(0)
    centred_NN = products_NN - mean_N[:, None] - mean_N[None, :] + mean_N.mean()
    along_N = centred_NN.diagonal() - centred_NN.diagonal().mean()
    along_N = along_N + 1e-3 * centred_NN.diagonal().mean() * torch.linspace(-1.0, 1.0, len(along_N)).to(along_N)
    for _ in range(POWER_ITERATIONS):
        along_N = centred_NN @ along_N
        along_N = along_N / along_N.norm().clamp_min(torch.finfo(along_N.dtype).tiny)
    return along_N
