"""Units that nothing reads, that are constant, or that the caller gives up are sliced away."""

from __future__ import annotations

import pytest
import torch

import dynamicgate as dg
from tests.inference.models import assert_same_outputs, compile_quickly, gated_mlp, rows_near_threshold

STATIC = dg.GateConfig(kind="static", block=4)


@pytest.mark.parametrize("kind", [None, "dynamic"])
def test_units_that_were_pruned_are_sliced_away(kind: str | None) -> None:
    model = gated_mlp(dg.GateConfig(block=1), (20, 64, 5)) if kind else dg.nn.GatedMLP((20, 64, 5)).eval()
    pruner = dg.sparsity.Magnitude(model, 0.25, pattern="units", prune_from=0.1, until=0.1, every=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(64, 20)
    model(x).sum().backward()
    pruner.step(optimizer, 0.5)
    model.eval()
    compiled = compile_quickly(model, x)
    assert "sliced to 16 x 20" in str(compiled.plan)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x) if kind else None)


def test_static_gates_are_sliced_away_and_cost_nothing() -> None:
    model = gated_mlp(STATIC, (20, 48, 5))
    open_units = int(dg.named_gates(model)["layers.1"](torch.zeros(1, 20)).open.sum()) * 4
    compiled = compile_quickly(model, torch.randn(32, 20))
    assert f"sliced to {open_units} x 20" in str(compiled.plan)
    assert f"sliced to 5 x {open_units}" in str(compiled.plan)


def test_a_static_gate_that_closes_everything_leaves_the_bias() -> None:
    model = gated_mlp(STATIC)
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias.fill_(-3.0)
    x = torch.randn(32, 20)
    assert_same_outputs(compile_quickly(model, x), model, x)


def test_a_unit_without_inputs_goes_into_the_bias_of_its_reader() -> None:
    model = dg.nn.GatedMLP((20, 32, 16, 5), activation="gelu").eval()
    with torch.no_grad():
        model.layers[0].weight[:10] = 0.0
        model.layers[1].weight[3] = 0.0
    x = torch.randn(32, 20)
    compiled = compile_quickly(model, x)
    assert "sliced to 22 x 20" in str(compiled.plan)
    assert_same_outputs(compiled, model, x)


def test_a_model_whose_units_are_all_constant_still_answers() -> None:
    model = dg.nn.GatedMLP((20, 32, 5)).eval()
    with torch.no_grad():
        model.layers[0].weight.zero_()
    x = torch.randn(32, 20)
    assert_same_outputs(compile_quickly(model, x), model, x)


def test_blocks_that_never_open_are_reported_and_removed_only_if_asked() -> None:
    model = gated_mlp(dg.GateConfig(net="linear", block=16), (20, 64, 5))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias[1] = -1e3
    x = torch.randn(64, 20)
    kept, dropped = compile_quickly(model, x), compile_quickly(model, x, drop_never_open=True)
    assert "'layers.1': 1 of 4 blocks never open on the calibration data (kept" in str(kept.plan)
    assert "sliced" not in str(kept.plan)
    assert "1 of 4 blocks never open on the calibration data (removed)" in str(dropped.plan)
    assert "sliced to 48 x 20" in str(dropped.plan)
    assert_same_outputs(kept, model, x, rows_near_threshold(model, x))
    assert_same_outputs(dropped, model, x, rows_near_threshold(model, x))


def test_blocks_that_compete_are_not_removed() -> None:
    model = gated_mlp(dg.GateConfig(net="linear", block=16, always_open=1), (20, 64, 5))
    with torch.no_grad():
        dg.named_gates(model)["layers.1"].bias[1] = -1e3
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x, drop_never_open=True)
    assert "blocks never open on the calibration data (kept" in str(compiled.plan)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))
