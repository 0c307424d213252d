"""Sparsifiers prune and grow only where a keeper leaves it free."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.continual import Contexts
from dynamicgate.sparsity import SET, Keeper, Magnitude, RigL, Sparsifier, Static
from dynamicgate.sparsity.free_places import highest, prune_and_regrow_free, random_free
from dynamicgate.sparsity.patterns import parse_pattern

MADE: dict[str, Any] = {
    "rigl": lambda model, keeper: RigL(model, 0.3, every=3, keeper=keeper),
    "rigl from dense": lambda model, keeper: RigL(model, 0.3, every=3, initial_density=1.0, keeper=keeper),
    "rigl, fan-in": lambda model, keeper: RigL(model, 0.3, every=3, pattern="fan-in", keeper=keeper),
    "rigl, tiles": lambda model, keeper: RigL(model, 0.3, every=3, pattern="4x2", keeper=keeper),
    "set": lambda model, keeper: SET(model, 0.3, every=3, keeper=keeper),
    "static": lambda model, keeper: Static(model, 0.3, keeper=keeper),
    "magnitude": lambda model, keeper: Magnitude(model, 0.3, every=3, prune_from=0.0, keeper=keeper),
}


def two_halves() -> nn.Sequential:
    """A gate that opens the first half of the units for inputs with a positive first feature, or the second half."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 5))
    dg.gate_(model, dg.GateConfig(block=8, net="linear"))
    (gate,) = dg.named_gates(model).values()
    with torch.no_grad():
        gate.net.weight.zero_()
        gate.net.weight[:2, 0], gate.net.weight[2:, 0] = 5.0, -5.0
        gate.bias.zero_()
    return model


def rows(side: float) -> Tensor:
    x = torch.randn(60, 12)
    x[:, 0] = side * (1.0 + x[:, 0].abs())
    return x


def learn(model: nn.Module, x: Tensor, keeper: Keeper, sparsifier: Sparsifier, steps: int = 20) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    y = torch.arange(len(x)) % 5
    for step in range(steps):
        optimizer.zero_grad()
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(x), y)
        sparsifier.watch(used)
        loss.backward()
        sparsifier.step(optimizer, step / steps)
        keeper.step(optimizer)
        optimizer.step()
        keeper.restore_()


def keep(model: nn.Module, keeper: Keeper, x: Tensor) -> int:
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
    return keeper.keep_(used)


@pytest.mark.parametrize("name", MADE)
def test_old_answers_and_connections_stay_while_others_move(name: str) -> None:
    model, old, new = two_halves(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    sparsifier = MADE[name](model, keeper)
    learn(model, old, keeper, sparsifier)
    keep(model, keeper, old)
    before, mask = model(old).detach(), model[0].mask.clone()
    sparsifier.restart_()
    assert torch.equal(model[0].mask[:16], mask[:16])
    learn(model, new, keeper, sparsifier)
    assert torch.equal(model(old), before)
    assert torch.equal(model[0].mask[:16], mask[:16])
    assert not torch.equal(model[0].mask[16:], mask[16:])
    density = float(model[0].mask[16:].float().mean())
    assert density == pytest.approx(0.3, abs=0.04), "of the free places"
    assert bool((model[0].weight[~model[0].mask] == 0).all())


def test_a_sparsifier_that_does_not_know_the_keeper_is_found_out() -> None:
    model, old, new = two_halves(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    sparsifier = RigL(model, 0.3, every=3)
    learn(model, old, keeper, sparsifier)
    keep(model, keeper, old)
    with pytest.raises(RuntimeError, match="not zero"):  # it pruned what the keeper has put back
        learn(model, new, keeper, sparsifier)
    with pytest.raises(ValueError, match="keeper"):
        sparsifier.restart_()


def test_only_allotted_units_learn_and_others_have_no_connections_yet() -> None:
    model, old = two_halves(), rows(1.0)
    keeper = Keeper(model)
    sparsifier = RigL(model, 0.3, every=3, keeper=keeper)
    units = torch.arange(32) < 16
    keeper.allot_({"2": units})
    sparsifier.restart_()
    assert not bool(model[0].mask[16:].any())
    assert float(model[0].mask[:16].float().mean()) == pytest.approx(0.3, abs=0.02)
    waiting = model[2].weight[:, 16:].detach().clone()
    bias = model[2].bias.detach().clone()
    learn(model, old, keeper, sparsifier)
    assert not bool(model[0].mask[16:].any())
    assert torch.equal(model[2].weight[:, 16:], waiting), "no weight decay while they wait"
    assert not torch.equal(model[2].bias, bias), "shared parameters learn with the first context"
    keeper.keep_({"2": units})
    assert keeper.free == {"2": 0.5}
    keeper.allot_({"2": ~units})
    sparsifier.restart_()
    assert float(model[0].mask[16:].float().mean()) == pytest.approx(0.3, abs=0.02)


def test_the_oldest_context_is_released_first() -> None:
    model = two_halves()
    keeper = Keeper(model)
    with pytest.raises(ValueError, match="no context"):
        keeper.release_oldest_()
    for number in range(3):
        assert keeper.keep_({"2": torch.arange(32) // 8 == number}) == number
    assert keeper.free == {"2": 0.25}
    assert [keeper.release_oldest_(), keeper.release_oldest_()] == [0, 1]
    assert keeper.free == {"2": 0.75}
    assert keeper.contexts == 3


def test_a_saved_model_knows_who_owns_its_units(tmp_path: Path) -> None:
    model, old, new = two_halves(), rows(1.0), rows(-1.0)
    keeper = Keeper(model)
    sparsifier = RigL(model, 0.3, every=3, keeper=keeper)
    learn(model, old, keeper, sparsifier)
    keep(model, keeper, old)
    dg.save(model, tmp_path / "model.safetensors")
    again = dg.load(tmp_path / "model.safetensors")
    before = again(old).detach()
    goes_on = Keeper(again)
    assert goes_on.free == {"2": 0.5}
    optimizer = torch.optim.AdamW(again.parameters(), lr=1e-2, weight_decay=0.5)
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(again(new), torch.arange(60) % 5).backward()
        goes_on.step(optimizer)
        optimizer.step()
        goes_on.restore_()
    assert torch.equal(again(old), before)


def test_the_keeper_is_that_of_the_model() -> None:
    model, other = two_halves(), two_halves()
    with pytest.raises(ValueError, match="another model"):
        RigL(model, 0.3, keeper=Keeper(other))
    with pytest.raises(ValueError, match="units"):
        Magnitude(model, 0.3, pattern="units", keeper=Keeper(model))


@pytest.mark.parametrize("name", ["unstructured", "fan-in", "4x2"])
def test_counts_of_free_tiles_are_constant(name: str) -> None:
    pattern, generator = parse_pattern(name), torch.Generator().manual_seed(0)
    mask = pattern.random(torch.Size((16, 12)), 0.5, generator)
    free = torch.zeros(16, 12, dtype=torch.bool)
    free[8:] = True
    scores = torch.rand(2, 16, 12, generator=generator)
    updated = prune_and_regrow_free(pattern, mask, scores[0], scores[1], 0.3, None, free)
    assert torch.equal(updated[:8], mask[:8])
    assert int(updated.sum()) == int(mask.sum())
    assert not torch.equal(updated, mask)
    drawn = random_free(pattern, mask, 0.25, free, generator)
    assert torch.equal(drawn[:8], mask[:8])
    assert int(drawn[8:].sum()) == 24


def test_each_row_gets_its_own_number() -> None:
    scores = torch.tensor([[1.0, 3.0, 2.0], [5.0, 5.0, 4.0], [1.0, 2.0, 3.0]])
    found = highest(scores, torch.tensor([2, 1, 0]))
    assert found.tolist() == [[False, True, True], [True, False, False], [False, False, False]]


@pytest.mark.parametrize("pattern", ["unstructured", "4x1"])
@pytest.mark.parametrize("make", [SET, RigL, Static])
def test_a_new_sparsifier_leaves_kept_connections_as_they_are(make: Any, pattern: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((24, 64, 5), dg.GateConfig(kind="context", block=16, contexts=4))
    keeper = Keeper(model)
    contexts = Contexts(model, keeper, make(model, 0.3, pattern=pattern, keeper=keeper))
    x = torch.randn(50, 24)
    contexts.open_()
    contexts.close_(x)
    before = model.eval()(x).detach()
    dg.save(model, tmp_path / "model.safetensors")
    again = dg.load(tmp_path / "model.safetensors").eval()
    keeper = Keeper(again)
    sparsifier = make(again, 0.3, pattern=pattern, keeper=keeper, seed=7)
    assert torch.equal(again(x), before)
    keeper.restore_()
    assert torch.equal(again(x), before)
    free = ~keeper.owned("layers.0.weight")  # type: ignore[operator]
    mask = sparsifier.layers[0].mask
    assert float(mask[free].float().mean()) == pytest.approx(0.3, abs=0.02)
    assert not bool((again.get_parameter("layers.0.weight")[~mask]).any())


def test_a_new_pruner_does_not_bring_back_what_a_kept_context_has_pruned() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((24, 64, 5), dg.GateConfig(kind="context", block=16, contexts=4))
    keeper = Keeper(model)
    contexts = Contexts(model, keeper, Static(model, 0.3, keeper=keeper))
    contexts.open_()
    contexts.close_(torch.randn(50, 24))
    owned = keeper.owned("layers.0.weight")
    assert owned is not None
    before = model.get_buffer("layers.0.mask").clone()
    mask = Magnitude(model, 0.3, keeper=keeper).layers[0].mask
    assert torch.equal(mask[owned], before[owned])
    assert bool(mask[~owned].all())
