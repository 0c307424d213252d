"""A budget that cannot be met names the layers that hold it back."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamicgate as dg


def conv_net() -> nn.Sequential:
    """MACs of a 1 x 8 x 8 image: 64 * 72 = 4,608 and 64 * 576 = 36,864 in convolutions, 512 * 32 + 128 in the rest."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 4),
    )  # fmt: skip


def test_layers_that_are_not_linear_are_counted_by_name() -> None:
    counter = dg.count_macs(conv_net(), torch.randn(3, 1, 8, 8))
    assert counter.other_layers == {"0": 4608.0, "2": 36864.0}
    assert counter.other == 4608 + 36864
    assert [*counter.always_executed] == ["2", "5", "0", "7"]  # the dearest first; no gate is on it yet


def test_the_error_names_layers_that_no_gate_closes_and_does_not_blame_the_gates() -> None:
    model, x = conv_net(), torch.randn(8, 1, 8, 8)
    dg.gate_(model, dg.GateConfig(block=8), where="7")
    budget = dg.Budget(target=0.4, counter=dg.count_macs(model, x))
    with pytest.raises(
        ValueError, match=r"Layers that no gate closes hold it back: '2' 0\.636, '0' 0\.079\. Ask"
    ) as said:
        dg.fit(model, (x, torch.arange(8) % 4), budget=budget, epochs=1, batch=4, show=False)
    assert "make the gates cheaper" not in str(said.value)


def test_sparsify_names_them_too() -> None:
    with pytest.raises(ValueError, match=r"what is no Linear layer costs 0\.715 of dense.*: '0' 0\.079, '2' 0\.636"):
        dg.sparsify_(conv_net(), macs=0.4, example=torch.randn(3, 1, 8, 8))
