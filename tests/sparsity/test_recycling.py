"""Silent units are drawn anew, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.sparsity import SET, Keeper, Recycler


def network() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
    with torch.no_grad():
        model[0].bias[:4] = -100.0  # never active
    return model


def step(model: nn.Module, optimizer: torch.optim.Optimizer, recycler: Recycler | None) -> int:
    optimizer.zero_grad()
    F.cross_entropy(model(torch.randn(20, 6)), torch.arange(20) % 3).backward()
    count = 0 if recycler is None else recycler.step(optimizer)
    optimizer.step()
    return count


def test_silent_units_become_active_and_answers_do_not_change() -> None:
    model, x = network(), torch.randn(50, 6)
    recycler = Recycler(model, every=2)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    assert step(model, optimizer, recycler) == 0
    before = model.eval()(x).detach()
    model.train()
    F.cross_entropy(model(torch.randn(20, 6)), torch.arange(20) % 3).backward()
    others = model[0].weight[4:].detach().clone()
    assert recycler.step(optimizer) == 4
    assert torch.equal(model.eval()(x), before), "new units have no outgoing weights yet"
    assert torch.equal(model[0].weight[4:], others)
    hidden = model[1](model[0](x))
    assert bool((hidden[:, :4].sum(0) > 0).all())
    moments = optimizer.state[model[0].weight]["exp_avg"]
    assert bool((moments[:4] == 0).all())
    assert recycler.recycled == 4


def test_without_recycling_they_stay_silent() -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(20):
        step(model, optimizer, None)
    assert not bool(model[1](model[0](torch.randn(50, 6)))[:, :4].any())


def test_useless_units_are_replaced_one_by_one_and_their_mean_is_not_lost() -> None:
    model = network()
    recycler = Recycler(model, kind="useless", rate=0.1, maturity=3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    counts = [step(model, optimizer, recycler) for _ in range(8)]
    assert counts[:3] == [0, 0, 0], "nothing is mature yet"
    assert 0 < sum(counts) <= 8
    assert all(count <= 2 for count in counts)


def test_a_sparsifier_recycles_on_the_connections_that_exist() -> None:
    model = network()
    recycler = Recycler(model, every=3)
    sparsifier = SET(model, 0.5, every=3, recycler=recycler)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(9):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(20, 6)), torch.arange(20) % 3).backward()
        sparsifier.step(optimizer, number / 100)
        optimizer.step()
    assert recycler.recycled >= 4
    assert bool((model[0].weight[~model[0].mask] == 0).all())
    assert float(model[0].mask.float().mean()) == 0.5


def test_kept_units_are_never_recycled() -> None:
    model = network()
    dg.gate_(model, dg.GateConfig(kind="context", block=4, contexts=4))
    keeper = Keeper(model)
    units: Tensor = torch.arange(16) < 2
    keeper.keep_({"2": units})
    recycler = Recycler(model, every=1, keeper=keeper)
    before = model[0].weight[:2].detach().clone()
    silent = model[0].weight[2:4].detach().clone()
    assert step(model, torch.optim.SGD(model.parameters(), lr=0.0), recycler) >= 2
    assert torch.equal(model[0].weight[:2], before)
    assert not torch.equal(model[0].weight[2:4], silent)


def test_hooks_are_taken_off_and_mistakes_are_refused() -> None:
    model = network()
    recycler = Recycler(model)
    recycler.remove()
    assert not model[2]._forward_pre_hooks
    with pytest.raises(ValueError, match="kind"):
        Recycler(model, kind="old")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="threshold"):
        Recycler(model, threshold=2.0)
    with pytest.raises(ValueError, match="no hidden units"):
        Recycler(nn.Linear(3, 4))
