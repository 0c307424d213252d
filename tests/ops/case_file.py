"""Random packed chains in a file, for the drivers in C++."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops import chain
from dynamicgate.ops.chain.layers import LAYOUTS
from dynamicgate.ops.chain.stages import DECIDE
from tests.ops import threshold_chains
from tests.ops.chains import Sketch, build, expect, inputs_for
from tests.ops.staged_chains import build_staged, expect_staged, rows_for

LARGEST = 100.0  # squares of squares grow beyond it, and the drivers allow for the rounding of ordinary numbers


def write_cases(path: Path, chains: int = 200, staged_chains: int = 50, with_thresholds: int = 50) -> None:
    """So many random chains, so many in stages, so many with thresholds, and their results."""
    pick = random.Random(0)
    with path.open("wb") as file:
        for seed in range(chains):
            sketches = [
                Sketch(
                    outputs=pick.choice([1, 3, 17, 63, 64, 100]), layout=pick.choice(LAYOUTS),
                    block=pick.choice([0, 1, 7, 16, 32]), rank=pick.choice([0, 3]),
                    cut=pick.choice(["all", "none", "some", "each", "top"]), top_k=pick.choice([0, 2]),
                    tau=pick.choice([None, 0.7]), soft_width=pick.choice([None, 0.8]),
                    activation=pick.choice(tuple(ACTIVATIONS)), skip_zeros=seed % 2 == 0, unbounded=seed % 4 < 2,
                    value=seed % 3 == 0, gate_layout=pick.choice(["panels", "csr", "vectors"]),
                )
                for _ in range(pick.randint(1, 3))
            ]  # fmt: skip
            if seed % 10 == 0:
                sketches[0] = Sketch(48, block=16, given=True)
            layers = build(pick.choice([1, 5, 16, 65]), sketches, seed)
            x, factor = inputs_for(layers, pick.choice([1, 2, 9, 33, 300]), seed)
            expected, clear = expect(x, layers, factor)
            x, expected = x[clear], expected[clear].float()
            factors = torch.empty(0) if factor is None else factor[clear]
            _write_case(file, chain.pack(layers), x, factors, expected)
        for seed in range(staged_chains):
            counts = [16, 1, 5, 33, 64]
            stages, layers_of = pick.randint(2, 4), pick.randint(1, 3)
            staged = build_staged(
                [[pick.choice(counts[k == 0 :]) for k in range(stages)] for _ in range(layers_of)],
                layout=[pick.choice(LAYOUTS) for _ in range(12)], activation=pick.choice(tuple(ACTIVATIONS)),
                decide=pick.choice(DECIDE), skip_zeros=seed % 2 == 0, seed=seed,
            )  # fmt: skip
            x = rows_for(staged, pick.choice([1, 2, 9, 33, 300]), zeros=pick.choice([0.1, 0.7]))
            expected, _, clear = expect_staged(x, staged)
            while float(expected.abs().max()) > LARGEST:
                x = x / 4
                expected, _, clear = expect_staged(x, staged)
            _write_case(file, chain.pack_staged(staged), x[clear], torch.empty(0), expected[clear].float())
        for seed in range(with_thresholds):
            sizes = [pick.choice([1, 5, 16, 33, 65, 100, 300]) for _ in range(3)]
            layouts = pick.choices(threshold_chains.LAYOUTS, k=2)
            above = pick.choices([0.0, 0.2, 0.7], k=2)
            first = threshold_chains.build(
                *sizes[:2], layouts[0], above=above[0], seed=seed, activation=pick.choice(tuple(ACTIVATIONS)),
                factors=pick.choice([None, 0.0, 0.2, 0.2, 1.0, 1e6]), value=pick.random() < 0.5,
            )  # fmt: skip
            layers = [first, threshold_chains.build(*sizes[1:], layouts[1], above=above[1], activation="identity")]
            x = threshold_chains.rows_of(pick.choice([1, 1, 2, 9, 33, 300]), sizes[0], seed)
            expected, clear = threshold_chains.expect(x, layers)
            _write_case(file, chain.pack(layers), x[clear], torch.empty(0), expected[clear].float())


def _write_case(file: BinaryIO, packed: chain.Packed, x: Tensor, factors: Tensor, expected: Tensor) -> None:
    weights, program, outputs = packed
    file.write(struct.pack("6q", *x.shape, outputs, program.numel(), weights.numel(), factors.numel()))
    for part in (program, weights, x, factors, expected):
        file.write(part.contiguous().numpy().tobytes())
