"""Which rows each context sees, in order: told by boundaries, or noticed by how strange a batch is.

Shapes in names: S batches of B rows with D features, C contexts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from dynamicgate.gating.context import ContextNet
from experiments.continual.images import Images

STRANGE = 5.0
PIECE = 256  # batches that are looked at together
SPARE = 100  # room for contexts that are found where there are none


class Seen(NamedTuple):
    """Which task's rows each context has seen, in order: tasks [C] and row positions [C][S, B]."""

    tasks: Tensor
    positions: list[Tensor]


def order_of(images: Images, asked: dict[str, Any], seed: int, task: int) -> Tensor:
    """The whole batches of all epochs of a task, [S, B]."""
    size, draw = asked["batch"], torch.Generator().manual_seed((1_000_003 * seed + task) * 7 + 5)
    whole = len(images.train_y) // size * size
    epochs = [torch.randperm(len(images.train_y), generator=draw)[:whole] for _ in range(asked["epochs"])]
    return torch.cat(epochs).view(-1, size).to(images.train.device)


@torch.no_grad()
def notice(images: Images, asked: dict[str, Any], seed: int) -> Seen:
    """Nothing is known: a batch that is like no known context opens a new one, as `Contexts.notice_` does.

    Batches that follow one another are mostly of one context, so a piece of them is looked at together: what the
    prototype would be before each batch is known from running sums, and the first batch that is not of this context
    ends the piece.
    """
    net = ContextNet(images.train.shape[1], 1, 2 * asked["tasks"] + SPARE).to(images.train.device)
    strange = asked.get("strange", STRANGE)
    from_task: list[int] = []
    found: list[list[Tensor]] = []
    for task in range(asked["tasks"]):
        for rows in order_of(images, asked, seed, task).split(PIECE):
            x = images.rows(torch.full((len(rows),), task, device=rows.device), rows)
            done = 0
            while done < len(rows):
                distance = net.strangeness(x[done])
                best = int(distance.argmin())
                if float(distance[best]) >= strange:
                    best = len(found)
                    found.append([])
                    from_task.append(task)
                net.learn_(best, x[done])
                more = follow_(net, best, x[done + 1 :], strange)
                found[best].append(rows[done : done + 1 + more])
                done += 1 + more
    return Seen(torch.tensor(from_task, device=images.train.device), [torch.cat(rows) for rows in found])


def follow_(net: ContextNet, context: int, x_SBD: Tensor, strange: float) -> int:
    """How many of these batches are of this context, one after the other; it learns them."""
    if not len(x_SBD):
        return 0
    size = x_SBD.shape[1]
    mean_SD = x_SBD.mean(1)
    square_S = x_SBD.double().square().sum(2).mean(1)
    count, mean_D = int(net.counts[context]), net.prototypes[context].double()
    steps_S = torch.arange(len(x_SBD) + 1, device=x_SBD.device, dtype=torch.float64)
    counts_S = count + size * steps_S  # rows before each batch, and after the last
    zero = mean_SD.new_zeros(1, mean_SD.shape[1], dtype=torch.float64)
    means_SD = (count * mean_D + size * torch.cat([zero, mean_SD.double().cumsum(0)])) / counts_S[:, None]
    squares_S = count * (net.spread[context].double() + mean_D.square().sum())
    squares_S = squares_S + size * torch.cat([zero[0, :1], square_S.cumsum(0)])
    spread_S = squares_S / counts_S - means_SD.square().sum(1)
    apart_S = (mean_SD - means_SD[:-1]).square().sum(1)
    own_S = apart_S / (spread_S[:-1] * (1.0 / size + 1.0 / counts_S[:-1])).clamp(min=1e-12)
    same_S = (own_S < strange) & (own_S <= nearest_other(net, context, mean_SD, size))
    more = int(same_S.long().cumprod(0).sum())
    net.prototypes[context], net.spread[context] = means_SD[more].float(), spread_S[more].float()
    net.counts[context] += size * more
    return more


def nearest_other(net: ContextNet, context: int, mean_SD: Tensor, size: int) -> Tensor:
    """How strange each batch of so many rows is to the nearest of the other contexts."""
    apart_SC = torch.cdist(mean_SD.double(), net.prototypes.double()).square()
    chance_C = net.spread.double() * (1.0 / size + 1.0 / net.counts.clamp(min=1))
    known_C = net.counts > 0
    known_C[context] = False
    return (apart_SC / chance_C.clamp(min=1e-12)).masked_fill(~known_C, torch.inf).amin(1)
