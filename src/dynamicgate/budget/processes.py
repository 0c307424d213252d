"""Means over all processes of a distributed run."""

from __future__ import annotations

import torch
from torch import Tensor
from torch import distributed as dist

from dynamicgate.usage import Usage


class Processes:
    """Means whose gradients, averaged over the processes as DDP does, are those of one process on the joined batch."""

    def __init__(self, used: Usage) -> None:
        """The processes that saw `used` and its counterparts; they may hold different numbers of rows."""
        decision = next(iter(used.values()))
        self.together = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        self.share = 1.0
        if self.together:
            rows = torch.tensor(float(decision.p_BG.shape[0]), device=decision.p_BG.device)
            total = rows.clone()
            dist.all_reduce(total)
            self.share = float(rows) * dist.get_world_size() / float(total)

    def reduce(self, value: Tensor) -> float:
        """The mean of a (share-weighted) value over processes."""
        value = value.detach().clone()
        if self.together:
            dist.all_reduce(value)
            value /= dist.get_world_size()
        return float(value)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all rows of all processes, with this process's share of the gradient."""
        local = value.sum() / max(1, value.numel()) * self.share
        return local + (self.reduce(local) - local.detach()) if self.together else local
