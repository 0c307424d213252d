"""Random chains through the kernels, against float64: odd sizes, all layouts and gates, stages, NaN and infinities,
and the same bits on 1, 2 and 8 threads. `python -m tests.fuzz.chains --count 20000 --seed 0`"""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops import chain
from dynamicgate.ops.chain import reference_chain
from dynamicgate.ops.chain.layers import LAYOUTS, Layer
from dynamicgate.ops.chain.stages import DECIDE
from dynamicgate.ops.gate_net import logits
from tests.fuzz.running import fuzz
from tests.ops.chains import MARGIN, Sketch, build, inputs_for, named_clearly
from tests.ops.staged_chains import build_staged, expect_staged, rows_for

if TYPE_CHECKING:
    from collections.abc import Iterator

THREADS = (1, 2, 8)
ODD = (torch.nan, torch.inf, -torch.inf)
WIDTHS = (1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 64, 100, 129, 200)
BATCHES = (0, 1, 1, 2, 5, 6, 13, 16, 17, 33, 64, 100, 257)
TOLERANCE = 5e-5


def check(seed: int) -> str | None:
    """What is wrong with the chain of this seed, if anything is."""
    rng = random.Random(seed)
    return _check_staged(rng, seed) if rng.random() < 0.1 else _check_plain(rng, seed)


def _check_plain(rng: random.Random, seed: int) -> str | None:
    sketches = [_sketch(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.1 and sketches[0].block:
        sketches[0] = Sketch(**{**vars(sketches[0]), "given": True})
    layers = build(rng.choice(WIDTHS), sketches, seed)
    packed = chain.pack(layers)
    for rows in rng.sample(BATCHES, 2):
        x, factor = inputs_for(layers, rows, seed, rng.choice(["rows", "columns", "wide"]))
        _spoil_(x, rng)
        expected, clear = _expect(x, layers, factor)
        if problem := _compare(x, packed, factor, expected, clear):
            return f"{problem}; {rows} rows, layers {sketches}"
    return None


def _check_staged(rng: random.Random, seed: int) -> str | None:
    stages = rng.randint(2, 4)
    sizes = [[rng.choice((1, 5, 16, 17, 33)) for _ in range(stages)] for _ in range(rng.randint(1, 3))]
    chosen = {
        "layout": rng.choice(LAYOUTS),
        "decide": rng.choice(DECIDE),
        "activation": rng.choice(("relu", "tanh", "gelu", "silu")),
    }
    staged = build_staged(sizes, seed=seed, skip_zeros=rng.random() < 0.3, **chosen)
    x = rows_for(staged, rng.choice(BATCHES[1:]), rng.choice(["rows", "columns", "wide"]))
    _spoil_(x, rng)
    expected, _, clear = expect_staged(x, staged)
    problem = _compare(x, chain.pack_staged(staged), None, expected, clear)
    return f"{problem}; {len(x)} rows, stages {sizes} {chosen}" if problem else None


def _sketch(rng: random.Random) -> Sketch:
    return Sketch(
        rng.choice(WIDTHS),
        rng.choice(LAYOUTS),
        block=rng.choice((0, 0, 1, 3, 8, 16, 17, 32)),
        rank=rng.choice((0, 0, 1, 4, 16)),
        cut=rng.choice(("some", "some", "each", "all", "none", "top")),
        top_k=rng.choice((0, 0, 1, 2)),
        tau=rng.choice((None, None, 0.5, 2.0)),
        soft_width=rng.choice((None, None, 0.5)),
        hidden=rng.choice(("identity", "relu", "nearest")),
        activation=rng.choice(tuple(ACTIVATIONS)),
        skip_zeros=rng.random() < 0.3,
        value=rng.random() < 0.3,
        gate_layout=rng.choice(("panels", "csr", "vectors")),
        competes=rng.random() < 0.5,
    )


def _spoil_(x: Tensor, rng: random.Random) -> None:
    """Put NaN and infinities into some rows, in half of all inputs."""
    if rng.random() < 0.5:
        return
    for row in range(len(x)):
        if rng.random() < 0.3:
            for _ in range(rng.choice((1, 1, 3))):
                x[row, rng.randrange(x.shape[1])] = rng.choice(ODD)


def _expect(x: Tensor, layers: list[Layer], factor: Tensor | None) -> tuple[Tensor, Tensor]:
    """The float64 result, and the rows in which no logit is so near its cut that rounding could move it across."""
    clear = torch.ones(x.shape[0], dtype=torch.bool)
    h = x.double()
    for layer in layers:
        if layer.gate is not None:
            z = logits(h, layer.gate)
            clear &= named_clearly(h, layer.gate, MARGIN)
            clear &= ~((z - torch.as_tensor(layer.gate.cut)).abs() <= MARGIN * (1 + z.abs())).any(1)
            if 0 < layer.gate.top_k < layer.blocks:
                best = z.sort(dim=1, descending=True).values
                gap = best[:, layer.gate.top_k - 1] - best[:, layer.gate.top_k]
                clear &= ~(gap <= MARGIN * (1 + best[:, layer.gate.top_k].abs()))
        h = reference_chain(h, [layer], factor)
    return h, clear


def _compare(x: Tensor, packed: chain.Packed, factor: Tensor | None, expected: Tensor, clear: Tensor) -> str | None:
    first: Tensor | None = None
    for count in THREADS:
        with _threads(count):
            y = chain.run(x, packed, factor)
        if first is None:
            first = y
        elif not torch.equal(first.view(torch.int32), y.view(torch.int32)):
            return f"other bits on {count} threads than on 1"
    assert first is not None
    if first.shape != expected.shape:
        return f"shape {tuple(first.shape)}, expected {tuple(expected.shape)}"
    y, expected = first.double()[clear], expected[clear]
    if not torch.equal(y.isnan(), expected.isnan()):
        return "NaN in the wrong places"
    same = (y == expected) | y.isnan()
    size = expected.abs().masked_fill(~expected.isfinite(), 0.0).amax(1, keepdim=True) if len(y) else expected
    near = (y - expected).abs() <= TOLERANCE * (1 + size)
    return None if bool((same | near).all()) else "wrong outputs"


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    fuzz("chains", check)
