"""Magnitude pruning of connections and of whole units."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynamicgate as dg
from tests.sparsity.steps import train


def test_one_shot_pruning_prunes_once() -> None:
    model = dg.nn.GatedMLP((20, 30, 3))
    sparsifier = dg.sparsity.Magnitude(model, 0.2, prune_from=0.5, until=0.5)
    optimizer = torch.optim.AdamW(model.parameters())
    layer = sparsifier.layers[0]
    train(model, sparsifier, optimizer, 50, 100)
    assert layer.count == 600
    smallest = layer.weight.detach().abs().flatten().sort().values[479]
    expected = layer.weight.detach().abs() > smallest
    F.cross_entropy(model(torch.randn(8, 20)), torch.randint(3, (8,))).backward()
    sparsifier.step(optimizer, 0.5)
    assert layer.count == 120
    assert torch.equal(layer.mask, expected)
    assert sparsifier.updates == 1
    optimizer.zero_grad()


def test_gradual_pruning_follows_the_cubic() -> None:
    sparsifier = dg.sparsity.Magnitude(dg.nn.GatedMLP((20, 30, 3)), 0.2, prune_from=0.2, until=0.6)
    assert sparsifier.density_at(0.2, 0.2) == 1.0
    assert sparsifier.density_at(0.4, 0.2) == pytest.approx(0.2 + 0.8 * 0.5**3)
    assert sparsifier.density_at(0.6, 0.2) == sparsifier.density_at(0.9, 0.2) == 0.2


def test_pruning_units_equals_a_smaller_network() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((10, 20, 16, 3))
    sparsifier = dg.sparsity.Magnitude(model, 0.25, pattern="units", prune_from=0.1, until=0.4, every=5)
    train(model, sparsifier, torch.optim.AdamW(model.parameters(), weight_decay=0.1), 60, 100)
    first, second, last = model.layers
    kept = [layer.mask.any(1).nonzero().flatten() for layer in (first, second)]  # type: ignore[union-attr,operator]
    assert [len(units) for units in kept] == [5, 4]
    small = dg.nn.GatedMLP((10, 5, 4, 3))
    with torch.no_grad():
        for layer, source, rows, columns in (
            (small.layers[0], first, kept[0], torch.arange(10)),
            (small.layers[1], second, kept[1], kept[0]),
            (small.layers[2], last, torch.arange(3), kept[1]),
        ):
            layer.weight.copy_(source.weight[rows][:, columns])  # type: ignore[union-attr,operator,index]
            layer.bias.copy_(source.bias[rows])  # type: ignore[union-attr,operator,index]
    x = torch.randn(9, 10)
    torch.testing.assert_close(small(x), model(x))
    with pytest.raises(ValueError, match="whole units can only be pruned where exactly one layer reads them"):
        dg.sparsity.Magnitude(dg.nn.GatedMLP((10, 8, 3)), 0.5, pattern="units", include=["layers.1"])
