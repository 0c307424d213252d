"""Masks are taken off, and those of torch are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import dynamicgate as dg


def plain() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 4))


def test_a_sparse_model_loads_strictly_into_a_plain_one() -> None:
    model, x = plain(), torch.randn(6, 20)
    dg.gate_(model, dg.GateConfig(block=8))
    dg.sparsity.Static(model, 0.5)
    assert dg.count_macs(model, x).all_open < 1.0
    dg.ungate_(model)
    want = model(x)
    assert dg.sparsity.finalize_(model) is model
    other = plain()
    other.load_state_dict(model.state_dict())
    torch.testing.assert_close(other(x), want, rtol=0.0, atol=0.0)
    assert dg.count_macs(model, x).all_open == 1.0


def test_pruned_layers_are_finalized_and_keep_their_zeros() -> None:
    model, x = plain(), torch.randn(6, 20)
    prune.l1_unstructured(model[0], "weight", amount=0.75)
    want = model(x)
    dg.sparsity.finalize_(model)
    plain().load_state_dict(model.state_dict())
    assert int((model[0].weight == 0).sum()) == 480
    torch.testing.assert_close(model(x), want, rtol=0.0, atol=0.0)


def test_masks_of_torch_are_counted() -> None:
    model, x = plain(), torch.randn(6, 20)
    dense = 20 * 32 + 32 * 4
    prune.l1_unstructured(model[0], "weight", amount=0.75)
    assert dg.measure(model, x).macs["executed"] == 160 + 128
    assert dg.measure(model, x).relative == (160 + 128) / dense
    prune.l1_unstructured(model[0], "weight", amount=0.5)  # again: torch puts another mask in its place
    assert dg.measure(model, x).macs["executed"] == 80 + 128


def test_masks_of_torch_are_counted_between_open_blocks() -> None:
    model, x = plain(), torch.randn(6, 20)
    prune.random_unstructured(model[0], "weight", amount=0.5)
    dg.gate_(model, dg.GateConfig(block=8, kind="static"))
    with torch.no_grad():
        dg.named_gates(model)["2"].bias[1:] = -5.0  # only the first block is open
    mask = model[0].weight_mask
    assert dg.measure(model, x).macs["executed"] == float(mask[:8].sum()) + 8 * 4


def test_pruned_models_keep_their_masks_out_of_model_files(tmp_path: Path) -> None:
    model = plain()
    prune.l1_unstructured(model[0], "weight", amount=0.75)
    dg.save(dg.sparsity.finalize_(model), tmp_path / "m.safetensors")
    assert int((dg.load(tmp_path / "m.safetensors")[0].weight == 0).sum()) == 480  # type: ignore[index]


def test_two_masks_on_one_layer_are_refused() -> None:
    model = plain()
    prune.l1_unstructured(model[0], "weight", amount=0.75)
    with pytest.raises(ValueError, match=r"take it off with dynamicgate\.sparsity\.finalize_ first"):
        dg.sparsity.Static(model, 0.5)


def test_the_masks_of_stages_stay_until_the_stages_go() -> None:
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 4))
    dg.gate_(model, dg.GateConfig(kind="stages"))
    with pytest.raises(ValueError, match="keep the order of its stages"):
        dg.sparsity.finalize_(model)
    dg.sparsity.finalize_(dg.ungate_(model))
    assert "2.mask" not in model.state_dict()
