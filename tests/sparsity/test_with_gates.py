"""Sparsifiers on models with gates: rarely open units, dead units, the usage penalty."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.sparsity.activity import MIN_COACTIVATION
from tests.sparsity.steps import rigl, train


def test_rarely_open_units_get_as_many_new_connections_as_others() -> None:
    """Both halves of the units have equally large gradients, but one half only in a tenth of the rows."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((30, 40, 3), dg.GateConfig(kind="static", block=20))
    sparsifier = rigl(model, density=0.2, every=1, fraction=0.5, rescale=False)
    layer, optimizer = sparsifier.layers[0], torch.optim.SGD(model.parameters(), lr=0.0)
    gate = dg.named_gates(model)["layers.1"]
    g = torch.ones(100, 2)
    g[10:, 1] = 0.0
    used = dg.gating.Usage({"layers.1": gate})
    with dg.usage(model) as real:
        F.cross_entropy(model(torch.randn(100, 30)), torch.randint(3, (100,))).backward()
    used(gate, real["layers.1"]._replace(open=g))
    sparsifier.watch(used)
    gradient = torch.rand(40, 30)
    gradient[20:] *= 0.1
    layer.weight.grad = gradient
    before = layer.mask.clone()
    sparsifier.step(optimizer, 0.0)
    grown = layer.mask & ~before
    rare = int(grown[20:].sum()) / int(grown.sum())
    assert 0.4 < rare < 0.6, "without the correction it would be none"
    assert MIN_COACTIVATION <= 0.1


def test_dead_units_lose_their_connections_first_and_grow_none() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 16, 12, 3), dg.GateConfig(kind="static", block=4))
    for kind in (dg.RigL, dg.sparsity.SET):
        sparsifier = kind(model, 0.4, every=2, fraction=0.3)
        gate = dg.named_gates(model)["layers.1"]
        with torch.no_grad():
            gate.bias[1] = -50.0  # units 4 to 7 of the first hidden vector never open
        layers = {layer.name: layer for layer in sparsifier.layers}
        rows, columns = layers["layers.0"], layers["layers.1"]
        before = int(rows.mask[4:8].sum()), int(columns.mask[:, 4:8].sum())
        train(model, sparsifier, torch.optim.AdamW(model.parameters()), 6, 1000)
        assert (int(rows.mask[4:8].sum()), int(columns.mask[:, 4:8].sum())) == (0, 0)
        assert min(before) > 0
        assert bool(sparsifier.open_rates.dead["layers.1"][1])
        with torch.no_grad():
            gate.bias[1] = 50.0
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, sparsifier, optimizer, 2, 1000)
        assert not bool(sparsifier.open_rates.dead["layers.1"].any()), "it has opened again"


def test_a_dead_unit_that_opens_again_starts_without_momentum() -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 16, 3), dg.GateConfig(kind="static", block=4))
    sparsifier = dg.RigL(model, 0.5, every=2, fraction=0.05)
    optimizer = torch.optim.AdamW(model.parameters())
    layer = sparsifier.layers[0]
    train(model, sparsifier, optimizer, 3, 1000)
    sparsifier.open_rates.dead["layers.1"][2] = True
    x, y = torch.randn(32, 20), torch.randint(3, (32,))
    with dg.usage(model) as used:
        loss = F.cross_entropy(model(x), y)
    sparsifier.watch(used)
    loss.backward()
    sparsifier.step(optimizer, 0.003)
    moments = optimizer.state[layer.weight]
    assert not moments["exp_avg"][8:12].any()
    assert not moments["exp_avg_sq"][8:12].any()
    assert moments["exp_avg"][:8].any()


def test_a_model_with_gates_needs_watch() -> None:
    model = dg.nn.GatedMLP((6, 8, 3), dg.GateConfig(block=2))
    sparsifier = rigl(model, every=1)
    F.cross_entropy(model(torch.randn(8, 6)), torch.randint(3, (8,))).backward()
    with pytest.raises(ValueError, match=r"call sparsifier\.watch\(used, penalty\)"):
        sparsifier.step(torch.optim.SGD(model.parameters(), lr=0.1), 0.0)


def test_gates_added_after_the_sparsifier_are_an_error() -> None:
    model = dg.nn.GatedMLP((6, 8, 3))
    sparsifier = rigl(model)
    dg.gate_(model, dg.GateConfig(block=2))
    with dg.usage(model) as used:
        model(torch.randn(4, 6))
    with pytest.raises(ValueError, match="put gates on the model before the sparsifier"):
        sparsifier.watch(used)


def test_growth_follows_the_task_loss_and_not_the_penalty() -> None:
    """Through the second layer's gate, the penalty has a gradient in the weights of the first layer."""
    found = []
    for weight in (0.0, 1000.0):
        torch.manual_seed(0)
        model = dg.nn.GatedMLP((10, 16, 16, 3), dg.GateConfig(block=4))
        sparsifier = rigl(model, every=1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        torch.manual_seed(1)
        x, y = torch.randn(64, 10), torch.randint(3, (64,))
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(x), y)
        penalty = weight * torch.stack(list(used.mean_p().values())).sum()
        sparsifier.watch(used, penalty)
        (loss + penalty).backward()
        sparsifier.step(optimizer, 0.0)
        found.append([layer.mask.clone() for layer in sparsifier.layers])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
