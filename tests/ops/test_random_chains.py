"""Random chains against float64, on poisoned memory. `python -m tests.fuzz.chains` runs many more of them."""

from __future__ import annotations

import torch

from dynamicgate.ops import chain
from dynamicgate.ops.chain.layers import LAYOUTS
from tests.fuzz.chains import check
from tests.fuzz.running import failures
from tests.ops.chains import Sketch, build, inputs_for


def test_random_chains_match_float64_with_nan_and_infinities_and_on_any_number_of_threads() -> None:
    assert failures(check, range(150)) == []


def test_closed_blocks_and_missing_weights_do_not_hide_nan() -> None:
    for layout in LAYOUTS:
        layers = build(30, [Sketch(64, layout, block=16, cut="none"), Sketch(10)], seed=1)
        x, _ = inputs_for(layers, 40, seed=1)
        x[3, 5] = torch.nan
        for rows in (x, x[3:4], x[:17]):
            y = chain.run(rows, chain.pack(layers))
            assert torch.equal(y.isnan().all(1), rows.isnan().any(1)), layout
            assert torch.equal(y.isnan().any(1), rows.isnan().any(1)), layout


def test_the_same_rows_give_the_same_bits_on_any_number_of_threads() -> None:
    layers = build(784, [Sketch(600, "csr"), Sketch(300, "rows", block=1, rank=4), Sketch(10)], seed=2)
    packed = chain.pack(layers)
    before = torch.get_num_threads()
    try:
        for rows in (1, 17, 100, 700):
            x, _ = inputs_for(layers, rows, seed=rows)
            found = set()
            for threads in (1, 2, 3, 8):
                torch.set_num_threads(threads)
                found |= {chain.run(x, packed).numpy().tobytes() for _ in range(20)}
            assert len(found) == 1, f"{rows} rows"
    finally:
        torch.set_num_threads(before)
