"""Sparsifiers that start denser than they end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynamicgate as dg
from tests.sparsity.steps import rigl, train


def masks_over_training(model: dg.nn.GatedMLP, sparsifier: dg.RigL) -> list[list[Tensor]]:
    """The mask of every layer after each of a hundred steps."""
    optimizer = torch.optim.AdamW(model.parameters())
    found = []
    for step in range(100):
        F.cross_entropy(model(torch.randn(8, 20)), torch.randint(3, (8,))).backward()
        sparsifier.step(optimizer, step / 100)
        optimizer.step()
        optimizer.zero_grad()
        found.append([layer.mask.clone() for layer in sparsifier.layers])
    return found


@pytest.mark.parametrize("pattern", ["unstructured", "fan-in", "4x1"])
def test_the_density_falls_along_the_cubic_from_a_denser_start(pattern: str) -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 30, 16, 3))
    sparsifier = rigl(
        model, 0.2, every=35, until=0.6, pattern=pattern, initial_density={"layers.0": 1.0}, prune_from=0.1
    )
    dense, sparse = sparsifier.layers
    assert dense.count == 600
    kept = sparse.count
    masks = masks_over_training(model, sparsifier)
    counts = [int(mask.sum()) for mask, _ in masks]
    assert {int(mask.sum()) for _, mask in masks} == {kept}
    assert counts == sorted(counts, reverse=True)
    assert counts[34] == pytest.approx(600 * (0.2 + 0.8 * ((60 - 34) / 50) ** 3), abs=20)
    assert counts[59] > counts[60]  # the last period ends before `until`
    assert counts[60] == counts[-1] == pytest.approx(120, abs=4)
    assert sparsifier.updates == 2
    assert bool((dense.weight[~dense.mask] == 0.0).all())


def test_a_sparsifier_with_a_denser_start_continues_from_its_state() -> None:
    models = [dg.nn.GatedMLP((20, 30, 3)) for _ in range(2)]
    first, second = (rigl(model, 0.2, initial_density=1.0) for model in models)
    train(models[0], first, torch.optim.AdamW(models[0].parameters()), 50, 60)
    assert first.pruning_done
    second.load_state_dict(first.state_dict())
    assert second.pruning_done


def test_the_surplus_may_be_pruned_long_before_the_last_update() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 30, 3))
    sparsifier = rigl(model, 0.2, every=10, until=0.7, initial_density=1.0, prune_from=0.1, prune_until=0.3)
    masks = [mask for (mask,) in masks_over_training(model, sparsifier)]
    counts = [int(mask.sum()) for mask in masks]
    assert counts[20] > counts[30] == counts[-1] == 120
    assert not torch.equal(masks[30], masks[60])  # connections are still exchanged


@pytest.mark.parametrize("given", [{"prune_until": 0.8}, {"prune_until": 0.1}, {"prune_from": 0.9}])
def test_pruning_must_start_before_it_ends_and_end_before_the_last_update(given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected 0 <= prune_from < prune_until <= until"):
        dg.RigL(dg.nn.GatedMLP((6, 8, 3)), 0.5, initial_density=1.0, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [{"prune_until": 0.5}, {"prune_from": 0.0}])
@pytest.mark.parametrize("kind", [dg.RigL, dg.sparsity.SET])
def test_pruning_times_without_a_denser_start_are_refused(kind: type[dg.RigL], given: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="pass initial_density as well"):
        kind(dg.nn.GatedMLP((6, 8, 3)), 0.5, **given)  # type: ignore[arg-type]
