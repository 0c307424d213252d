"""Values that cannot be meant are refused with a sentence, before anything is allocated for them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

import dynamicgate as dg

HUGE = 10**12
X = torch.randn(32, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(32) % 4


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def fit(**options: object) -> object:
    return dg.fit(mlp(), (X, Y), show=False, **{"epochs": 1, "batch": 16, **options})  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "block": (lambda: dg.gate_(mlp(), dg.GateConfig(block=HUGE)), "block=.*: no layer has so many units"),
    "tile": (lambda: dg.RigL(mlp(), 0.5, pattern=f"{HUGE}x{HUGE}"), "the largest tile that fits any is 16x8"),
    "wide tile": (lambda: dg.sparsity.Static(mlp(), 0.5, pattern="1x65"), "the largest tile that fits any is 16x8"),
    "magnitude": (lambda: dg.sparsity.Magnitude(mlp(), 0.5, pattern="65x1"), "the largest tile that fits any is 16x8"),
    "no tile": (lambda: dg.RigL(mlp(), 0.5, pattern=None), "a pattern is 'unstructured', .* received None"),  # type: ignore[arg-type]
    "no pieces": (lambda: fit(accumulate=0), "accumulate must be 1 or more, received 0"),
    "half a piece": (lambda: fit(accumulate=1.5), "accumulate must be 1 or more, received 1.5"),
    "half an epoch": (lambda: fit(epochs=0.5), "epochs must be 1 or more, received 0.5"),
    "decay": (lambda: fit(weight_decay=float("nan")), "weight_decay must be 0 or more, received nan"),
    "growth": (lambda: fit(weight_decay=-1.0), "weight_decay must be 0 or more, received -1"),
    "rate": (lambda: fit(lr=float("inf")), "the learning rate must be positive, received inf"),
    "patience": (lambda: fit(patience=float("nan"), valid=(X, Y)), "patience is a number of epochs"),
    "seed": (lambda: fit(seed=1 << 70), "seed must be a whole number from 0 to"),
    "batches": (lambda: dg.compile(mlp(), X, batches=(HUGE,)), "batches of more than 16,777,216 rows"),
    "half a row": (lambda: dg.compile(mlp(), X, batches=(1.5,)), "batches must be ascending numbers"),  # type: ignore[arg-type]
    "seconds": (lambda: dg.compile(mlp(), X, seconds=float("nan")), "seconds is about how long timing may take"),
    "memory": (lambda: dg.compile(mlp(), X, memory=float("nan")), "memory is a multiple of the dense weights"),
    "measure": (lambda: dg.measure(mlp(), (X, Y), batch=0), "a batch has 1 row or more, received 0"),
    "budget": (lambda: dg.Budget(target=0.5).calibrate_(dg.gate_(mlp()), []), "nothing to calibrate on"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_value_that_cannot_be_meant_is_refused_with_a_sentence(name: str) -> None:
    call, sentence = CASES[name]
    with pytest.raises(ValueError, match=sentence):
        call()


def test_a_block_wider_than_its_layer_is_all_of_it_and_takes_no_more_memory() -> None:
    wide, narrow = (dg.gate_(mlp(), dg.GateConfig(block=block)) for block in (1 << 24, 16))
    narrow.load_state_dict(wide.state_dict())
    assert torch.equal(wide(X), narrow(X)), "2**24 units of 32 rows would be 2 GB"
    (gate,) = dg.named_gates(wide).values()
    assert (gate.block, gate.blocks, gate.config.block) == (16, 1, 1 << 24)


def test_numbers_of_numpy_are_numbers() -> None:
    assert fit(epochs=np.int64(1), batch=np.int32(16), accumulate=np.int64(2), seed=np.int64(3))
