"""A short training loop and a RigL with short periods, for the tests of sparsifiers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.sparsity import Sparsifier


def train(model: nn.Module, sparsifier: Sparsifier, optimizer: torch.optim.Optimizer, steps: int, total: int) -> None:
    """Steps on random data, with `watch` where there are gates."""
    generator = torch.Generator().manual_seed(5)
    features = next(m.in_features for m in model.modules() if isinstance(m, nn.Linear))
    for step in range(steps):
        x, y = torch.randn(32, features, generator=generator), torch.randint(3, (32,), generator=generator)
        if dg.named_gates(model):
            with dg.usage(model) as used:
                loss = F.cross_entropy(model(x), y)
            sparsifier.watch(used)
        else:
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        sparsifier.step(optimizer, step / total)
        optimizer.step()
        optimizer.zero_grad()


def rigl(model: nn.Module, density: float = 0.3, every: int = 5, **rest: object) -> dg.RigL:
    return dg.RigL(model, density, every=every, **rest)  # type: ignore[arg-type]
