"""Normalisation and constant factors are folded into the weights that read them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamicgate as dg
from tests.inference.models import assert_same_outputs, compile_quickly, gated_mlp, rows_near_threshold


def test_static_input_gates_and_hidden_gates_work_together() -> None:
    model = gated_mlp(dg.GateConfig(block=8), normalize=dg.nn.Normalize(torch.randn(20), torch.rand(20) + 0.5))
    dg.gate_(model, dg.GateConfig(kind="static", open=0.6), where=dg.where.inputs)
    with torch.no_grad():
        dg.named_gates(model)["layers.0"].bias.copy_(torch.randn(20))
    x = torch.randn(64, 20)
    compiled = compile_quickly(model, x)
    assert not any("in torch" in note for note in compiled.plan.notes)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


@pytest.mark.parametrize("features", [(), (20,)])
def test_input_normalisation_is_folded(features: tuple[int, ...]) -> None:
    normalize = dg.nn.Normalize(torch.rand(features) + 0.1, torch.rand(features) + 0.5)
    model = gated_mlp(dg.GateConfig(net="two-layer", block=16), normalize=normalize)
    x = torch.randn(64, 20).relu()
    x[3] = 0.0
    compiled = compile_quickly(model, x)
    assert_same_outputs(compiled, model, x, rows_near_threshold(model, x))


@pytest.mark.parametrize("affine", [True, False])
def test_a_layer_norm_is_folded_only_if_its_input_has_exact_zeros(affine: bool) -> None:
    norm = nn.LayerNorm(20, elementwise_affine=affine)
    if affine:
        nn.init.normal_(norm.weight, 1.0, 0.3)
        nn.init.normal_(norm.bias)
    model = nn.Sequential(norm, nn.Linear(20, 48), nn.ReLU(), nn.Linear(48, 5)).eval()
    dg.gate_(model, dg.GateConfig(block=16))
    x = torch.randn(64, 20).relu()
    folded = compile_quickly(model, x)
    assert isinstance(folded.body, nn.Module)
    assert folded.body.norm_eps == norm.eps
    assert_same_outputs(folded, model, x, rows_near_threshold(model, x))
    x = torch.randn(64, 20) + 3.0
    in_torch = compile_quickly(model, x)
    assert not hasattr(in_torch.body, "norm_eps")
    assert_same_outputs(in_torch, model, x, rows_near_threshold(model, x))


def test_batch_norm_is_folded_on_either_side_of_the_activation() -> None:
    model = nn.Sequential(
        nn.BatchNorm1d(20), nn.Linear(20, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(),
        nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 5), nn.BatchNorm1d(5),
    )  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm1d):
            for tensor in (module.weight, module.running_var):
                nn.init.uniform_(tensor, 0.5, 2.0)
            for tensor in (module.bias, module.running_mean):
                nn.init.normal_(tensor)
    x = torch.randn(64, 20)
    compiled = compile_quickly(model.eval(), x)
    assert [row.name for row in compiled.plan.chains[0][0].layers] == ["1", "4", "8"]
    assert_same_outputs(compiled, model, x)
    with pytest.raises(ValueError, match="a batch norm was folded in"):
        compiled(x[None])
