"""Properties that must hold for all shapes, densities, patterns and optimizers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.masks import pattern_of
from dynamicgate.sparsity import Sparsifier

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, foreach=False),
    "sgd nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, foreach=False),
    "adam foreach amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True, foreach=True),
    "adam fused": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.01, fused=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=False),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.001, momentum=0.9, centered=True),
}
EXAMPLES = settings.default.max_examples  # make fuzz asks for more
PATTERNS = ("unstructured", "fan-in", "16x1", "4x4", "3x2", "1x5")


def off_mask(sparsifier: Sparsifier) -> float:
    """The largest weight that has no connection."""
    return max(float((layer.weight.detach() * ~layer.mask).abs().max()) for layer in sparsifier.layers)


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 10, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 40), st.integers(1, 40), st.integers(1, 40), st.integers(2, 5)),
    density=st.floats(0.05, 1.0),
    pattern=st.sampled_from(PATTERNS),
    distribution=st.sampled_from(["uniform", "erk"]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    kind=st.sampled_from(["rigl", "set", "static", "rigl averaged"]),
    seed=st.integers(0, 1000),
)
def test_counts_stay_constant_and_weights_off_the_mask_stay_zero_for_200_steps(
    sizes: tuple[int, ...], density: float, pattern: str, distribution: str, optimizer: str, kind: str, seed: int
) -> None:
    torch.manual_seed(seed)
    model = dg.nn.GatedMLP(sizes)
    layers = {"density": density, "pattern": pattern, "distribution": distribution, "seed": seed}
    make: dict[str, Callable[[], Sparsifier]] = {
        "rigl": lambda: dg.RigL(model, **layers, every=7, until=0.9, fraction=0.5),
        "rigl averaged": lambda: dg.RigL(model, **layers, every=7, until=0.9, fraction=0.5, gradient_steps=3),
        "set": lambda: dg.sparsity.SET(model, **layers, every=7, until=0.9, fraction=0.5),
        "static": lambda: dg.sparsity.Static(model, **layers),
    }
    try:
        sparsifier = make[kind]()
    except ValueError as error:
        if "too few connections" in str(error):
            return
        raise
    counts = [layer.count for layer in sparsifier.layers]
    first = [layer.mask.clone() for layer in sparsifier.layers]
    opt = OPTIMIZERS[optimizer](list(model.parameters()))
    x, y = torch.randn(16, sizes[0]), torch.randint(sizes[-1], (16,))
    for step in range(200):
        F.cross_entropy(model(x), y).backward()
        updates = sparsifier.updates
        before = [layer.mask.clone() for layer in sparsifier.layers]
        sparsifier.step(opt, step / 200)
        if sparsifier.updates > updates:
            for layer, mask in zip(sparsifier.layers, before, strict=True):
                grown = layer.mask & ~mask
                assert not layer.weight[grown].any(), "a grown connection starts at zero"
                state = [v for v in opt.state[layer.weight].values() if getattr(v, "shape", None) == mask.shape]
                assert all(not value[grown | (mask & ~layer.mask)].any() for value in state)
        opt.step()
        opt.zero_grad()
        assert off_mask(sparsifier) == 0.0
    assert [layer.count for layer in sparsifier.layers] == counts, "to the entry"
    for layer, mask in zip(sparsifier.layers, first, strict=True):
        assert layer.mask.dtype == torch.bool
        assert pattern_of(layer.linear) == pattern
        assert follows_pattern(layer.mask, pattern)
        assert bool((layer.explored & mask).sum() == mask.sum()), "a connection that ever existed counts as explored"
        assert kind != "static" or torch.equal(layer.mask, mask)
    if kind != "static" and any(0 < count < mask.numel() for count, mask in zip(counts, first, strict=True)):
        assert sparsifier.updates == 25


def follows_pattern(mask: torch.Tensor, pattern: str) -> bool:
    if pattern == "unstructured":
        return True
    if pattern == "fan-in":
        return len(mask.sum(1).unique()) == 1
    rows, columns = map(int, pattern.split("x"))
    tiles = [
        mask[i : i + rows, j : j + columns]
        for i in range(0, mask.shape[0], rows)
        for j in range(0, mask.shape[1], columns)
    ]
    return all(bool(tile.all()) or not bool(tile.any()) for tile in tiles)


@pytest.mark.slow
@settings(max_examples=EXAMPLES // 10, deadline=None)
@given(
    sizes=st.tuples(st.integers(1, 30), st.integers(1, 30), st.integers(2, 30), st.integers(2, 5)),
    density=st.floats(0.05, 0.95),
    pattern=st.sampled_from([*PATTERNS, "units"]),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    prune_from=st.floats(0.0, 0.7),
)
def test_pruning_never_grows_and_ends_at_its_density(
    sizes: tuple[int, ...], density: float, pattern: str, optimizer: str, prune_from: float
) -> None:
    torch.manual_seed(0)
    model = dg.nn.GatedMLP(sizes)
    sparsifier = dg.sparsity.Magnitude(model, density, pattern=pattern, prune_from=prune_from, until=0.7, every=9)
    opt = OPTIMIZERS[optimizer](list(model.parameters()))
    x, y = torch.randn(16, sizes[0]), torch.randint(sizes[-1], (16,))
    before = [layer.mask.clone() for layer in sparsifier.layers]
    for step in range(100):
        F.cross_entropy(model(x), y).backward()
        sparsifier.step(opt, step / 100)
        opt.step()
        opt.zero_grad()
        assert off_mask(sparsifier) == 0.0
        now = [layer.mask.clone() for layer in sparsifier.layers]
        assert all(not bool((b & ~a).any()) for a, b in zip(before, now, strict=True)), "nothing is regrown"
        before = now
    if pattern == "unstructured":
        for layer in sparsifier.layers:
            assert layer.count == max(1, round(density * layer.mask.numel()))
    elif pattern == "units":
        for linear, width in zip(model.layers[:-1], sizes[1:-1], strict=True):
            alive = linear.mask.any(1)  # type: ignore[union-attr,operator]
            assert int(alive.sum()) <= max(1, round(density * width))
            assert not linear.bias[~alive].any(), "a pruned unit has no bias"
    else:
        assert all(follows_pattern(layer.mask, pattern) for layer in sparsifier.layers)


@pytest.mark.parametrize("name", ["adam", "adamw fused", "adam foreach amsgrad"])
def test_a_grown_connection_takes_no_larger_steps_than_an_old_one(name: str) -> None:
    """Adam counts steps per tensor: with cleared moments alone the steps would be up to 6.5 learning rates."""
    torch.manual_seed(0)
    model = dg.nn.GatedMLP((20, 30, 3))
    sparsifier = dg.RigL(model, 0.2, every=100, until=0.9, fraction=0.5)
    opt = OPTIMIZERS[name](list(model.parameters()))
    for group in opt.param_groups:
        group.update(lr=0.001, weight_decay=0.0)
    layer = sparsifier.layers[0]
    torch.manual_seed(1)
    x, y = torch.randn(300, 20), torch.randint(3, (300,))
    worst, grown = 0.0, torch.zeros_like(layer.mask)
    for step in range(160):
        rows = torch.randint(300, (32,))
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        before, weights = layer.mask.clone(), layer.weight.detach().clone()
        sparsifier.step(opt, step / 160)
        grown |= layer.mask & ~before
        opt.step()
        opt.zero_grad()
        if grown.any():
            worst = max(worst, float((layer.weight.detach() - weights)[grown].abs().max()))
    assert grown.any()
    assert 0.0 < worst <= 1.6 * 0.001, "the steps of old connections are as large as that"
