"""A single row, which reads its panels at several places in turns: any number of panels, inputs and open blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dynamicgate.ops import chain
from dynamicgate.ops.chain import Layer, reference_chain
from tests.ops.chains import THREADS, Sketch, build

PANELS = ["panels", "half panels", "byte panels"]
# outputs in panels of sixteen: 1, 2, 3, 4, 5, 7, 8 and 11 of them, most with a last one that is not full
OUTPUTS = [3, 32, 41, 64, 79, 100, 128, 170]


def run(x: torch.Tensor, layers: list[Layer], threads: int = 1) -> torch.Tensor:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return chain.run(x, chain.pack(layers))
    finally:
        torch.set_num_threads(before)


def off(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-6))


@pytest.mark.parametrize("layout", PANELS)
@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 16, 37, 129])
def test_a_dense_layer_matches_float64(inputs: int, layout: str) -> None:
    for outputs in OUTPUTS:
        layers = build(inputs, [Sketch(outputs, layout)], seed=outputs)
        x = torch.randn(1, inputs, generator=torch.Generator().manual_seed(inputs))
        assert off(run(x, layers), reference_chain(x.double(), layers)) < 1e-5, outputs


@pytest.mark.parametrize("activation", ["gelu", "relu"])  # of what is behind a ReLU, zeros are skipped instead
@pytest.mark.parametrize("layout", PANELS)
@pytest.mark.parametrize("cut", ["all", "none", "some", "each"])
@pytest.mark.parametrize("block", [5, 16, 32, 48])
def test_open_blocks_match_float64(block: int, cut: str, layout: str, activation: str) -> None:
    for units, outputs in ((70, 3), (150, 41), (200, 170), (333, 79)):
        gated = Sketch(units, layout, block, cut=cut, activation=activation)
        layers = build(37, [gated, Sketch(outputs, layout)], seed=units + block)
        for seed in range(3):
            x = torch.randn(1, 37, generator=torch.Generator().manual_seed(seed))
            assert off(run(x, layers), reference_chain(x.double(), layers)) < 1e-5, (units, seed)


@pytest.mark.parametrize("layout", PANELS)
@pytest.mark.parametrize("block", [0, 48])
def test_any_number_of_threads_gives_the_same_bits(block: int, layout: str) -> None:
    """Layers of so much work that threads share it: they cut the list of panels at other places."""
    up, down = 1500, 1003  # a thread is worth waking for 200,000 multiply-adds, and a third of the blocks may be open
    sketches = [Sketch(up, layout, block, cut="some", activation="gelu"), Sketch(down, layout), Sketch(17, layout)]
    layers = build(900, sketches, seed=block)
    x = torch.randn(1, 900, generator=torch.Generator().manual_seed(2))
    found = run(x, layers)
    assert off(found, reference_chain(x.double(), layers)) < 1e-4
    for threads in (*THREADS, 3, 5):
        assert torch.equal(run(x, layers, threads), found), threads


def test_the_weights_of_closed_blocks_are_not_read() -> None:
    layers = build(37, [Sketch(150, "panels", 32, cut="some", activation="gelu"), Sketch(41)], seed=4)
    x = torch.randn(1, 37, generator=torch.Generator().manual_seed(1))
    found = run(x, layers)
    gate = layers[0].gate
    assert gate is not None
    closed = [b for b in range(gate.blocks) if not is_open(x, layers, b)]
    assert 0 < len(closed) < gate.blocks
    up, down = layers[0].weight.clone(), layers[1].weight.clone()
    for b in closed:
        up[32 * b : 32 * (b + 1)] = down[:, 32 * b : 32 * (b + 1)] = torch.nan
    assert torch.equal(run(x, [replace(layers[0], weight=up), replace(layers[1], weight=down)]), found)


def is_open(x: torch.Tensor, layers: list[Layer], block: int) -> bool:
    """Whether any unit of a block matters: taking its weights away changes the result."""
    down = layers[1].weight.clone()
    down[:, 32 * block : 32 * (block + 1)] = 0.0
    return not torch.equal(run(x, [layers[0], replace(layers[1], weight=down)]), run(x, layers))
