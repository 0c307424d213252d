"""Means over all processes of a distributed run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist

from dynamicgate.gating.recording import Usage


class Processes:
    """Means whose gradients, averaged over the processes as DDP does, are those of one process on the joined batch."""

    def __init__(self, used: Usage) -> None:
        """The processes that saw `used` and its counterparts; they may hold different numbers of rows."""
        decision = next(iter(used.values()))
        self.together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.share = 1.0
        if self.together:
            rows = torch.tensor(float(decision.p.shape[0]), device=decision.p.device)
            total = rows.clone()
            dist.all_reduce(total)
            self.share = float(rows) * dist.get_world_size() / float(total)

    def told(self, *values: Tensor) -> list[float]:
        """The means of (share-weighted) values over processes, all at once: on a GPU every answer is a wait."""
        together = torch.stack([value.detach() for value in values])
        if self.together:
            dist.all_reduce(together)
            together /= dist.get_world_size()
        return together.tolist()

    def local(self, value: Tensor) -> Tensor:
        """This process's part of `mean`."""
        return value.sum() / max(1, value.numel()) * self.share

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all rows of all processes, with this process's share of the gradient."""
        local = self.local(value)
        return local + (self.told(local)[0] - local.detach()) if self.together else local
