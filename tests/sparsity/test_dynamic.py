"""What RigL and SET prune and grow, and when."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from tests.sparsity.steps import rigl, train


def test_rigl_prunes_the_smallest_weights_and_grows_the_largest_gradients() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((10, 12, 3))
    sparsifier = rigl(model, every=1, fraction=0.5)
    layer = sparsifier.layers[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    F.cross_entropy(model(torch.randn(50, 10)), torch.randint(3, (50,))).backward()
    before, weight = layer.mask.clone(), layer.weight.detach().clone()
    gradient = layer.weight.grad.clone()  # type: ignore[union-attr]
    sparsifier.step(optimizer, 0.0)
    pruned, grown = before & ~layer.mask, layer.mask & ~before
    assert int(pruned.sum()) == int(grown.sum()) == round(0.5 * int(before.sum()))
    assert weight[pruned].abs().max() <= weight[before & ~pruned].abs().min()
    assert gradient[grown].abs().min() >= gradient[~before & ~grown].abs().max()
    assert not layer.weight.grad[grown].any(), "their first optimizer step is the next one"  # type: ignore[index]


def test_gradients_are_summed_with_their_sign_over_gradient_steps() -> None:
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    sparsifier = dg.RigL(model, 0.5, every=3, gradient_steps=2, rescale=False)
    layer, optimizer = sparsifier.layers[0], torch.optim.SGD(model.parameters(), lr=0.0)
    mask = layer.mask.clone()
    gradients = [torch.randn(5, 4, generator=torch.Generator().manual_seed(s)) for s in range(3)]
    for step, gradient in enumerate(gradients):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        layer.weight.grad = gradient.clone()
        sparsifier.step(optimizer, step / 100)
    wanted = (gradients[1] + gradients[2]).abs().masked_fill(mask, -1.0)
    grown = layer.mask & ~mask
    assert torch.equal(grown, wanted >= wanted.flatten().sort(descending=True).values[int(grown.sum()) - 1])


def test_the_exchanged_fraction_falls_to_zero_and_then_the_mask_stays() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(400, 20), torch.randint(3, (400,))
    model = dg.nn.GatedMLP((20, 30, 3))
    history = dg.fit(model, (x, y), sparsifier=rigl(model, until=0.5, fraction=0.4), epochs=10, batch=40, show=False)
    churn = [row["sparsity"]["layers.0"]["churn"] for row in history.log]
    assert churn[4] == pytest.approx(0.4, abs=0.01)
    assert churn[24] == pytest.approx(0.2, abs=0.04), "the cosine is at one half after a quarter of training"
    assert churn[48] < 0.02
    explored = [row["sparsity"]["layers.0"]["explored"] for row in history.log]
    assert explored[50:] == [explored[50]] * len(explored[50:])


def test_a_run_too_short_for_an_update_is_an_error() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    with pytest.raises(ValueError, match="would never update them"):
        train(model, rigl(model, every=400), torch.optim.SGD(model.parameters(), lr=0.1), 80, 80)
    x, y = torch.randn(64, 6), torch.randint(3, (64,))
    with pytest.raises(ValueError, match="would never update them"):
        dg.fit(model, (x, y), sparsifier=rigl(model, every=400), epochs=2, batch=8, show=False)
    with pytest.raises(ValueError, match="would not finish"):
        dg.fit(model, (x, y), sparsifier=dg.sparsity.Magnitude(model, 0.5, until=0.99), epochs=1, batch=8, show=False)
    train(model, dg.sparsity.Static(model, 0.5), torch.optim.SGD(model.parameters(), lr=0.1), 5, 5)


def test_fit_logs_exploration_and_churn() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 10)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    model = dg.nn.GatedMLP((10, 32, 3))
    history = dg.fit(model, (x, y), sparsifier=rigl(model, every=10), epochs=10, batch=20, show=False)
    rows = [row["sparsity"]["layers.0"] for row in history.log]
    assert rows[0]["density"] == rows[-1]["density"] == pytest.approx(0.3, abs=0.01)
    explored = [row["explored"] for row in rows]
    assert explored == sorted(explored)
    assert explored[0] == pytest.approx(0.3, abs=0.01)
    assert explored[-1] > 0.4
    assert max(row["churn"] for row in rows) == pytest.approx(0.29, abs=0.02)
    assert all(row["sparsity"] is None for row in dg.fit(dg.nn.GatedMLP((10, 4, 3)), (x, y), epochs=1, show=False).log)
