"""A plain training loop with a budget, and rows for it."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate import GateConfig
from dynamicgate.budget import GateBudget
from dynamicgate.nn import GatedMLP

LOW_RANK = GateConfig(net="low-rank", rank=2, block=4)
STATIC = GateConfig(kind="static")


def task(rows: int = 2000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Six noisy clusters in 32 dimensions, four classes."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(6, 32, generator=generator)
    cluster = torch.randint(0, 6, (rows,), generator=generator)
    return centres[cluster] + torch.randn(rows, 32, generator=generator), cluster % 4


def train(model: GatedMLP, budget: GateBudget, steps: int, *, start: int = 0, stop: int | None = None, optimizer=None):
    """The loop of the design, line by line."""
    x, y = task()
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(start, steps if stop is None else stop):
        batch = torch.randperm(len(x), generator=torch.Generator().manual_seed(step))[:128]
        budget.apply_(model, progress := step / steps)
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(x[batch]), y[batch])
        (loss + budget.step(used, progress)).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
