"""Connections that survive a few exchanges stay, to the bit."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dynamicgate.sparsity import Consolidation, RigL


def test_connections_that_survived_are_kept_to_the_bit_and_others_move() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 3))
    consolidation = Consolidation(model, after=2, most=0.4)
    sparsifier = RigL(model, 0.4, every=3, until=1.0, keeper=consolidation)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.5)
    kept = values = None
    for step in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(30, 10)), torch.arange(30) % 3).backward()
        sparsifier.step(optimizer, step / 100)
        consolidation.step(optimizer)
        optimizer.step()
        consolidation.restore_()
        if step == 15:
            kept = consolidation.kept("0.weight")
            assert kept is not None
            kept, values = kept.clone(), model[0].weight.detach().clone()
    assert kept is not None
    assert values is not None
    assert int(kept.sum()) > 0
    now = consolidation.kept("0.weight")
    assert now is not None
    assert bool((now | ~kept).all()), "what is kept stays kept"
    assert torch.equal(model[0].weight[kept], values[kept])
    assert bool(model[0].mask[kept].all())
    free = model[0].mask & ~now
    assert not torch.equal(model[0].weight[free], values[free])
    assert consolidation.free["0"] == pytest.approx(0.6, abs=0.02), "no more than `most` is kept"
    assert bool((model[0].weight[~model[0].mask] == 0).all())


def test_mistakes_are_refused() -> None:
    with pytest.raises(ValueError, match="after"):
        Consolidation(nn.Linear(3, 3), after=0)
