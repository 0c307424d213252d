"""Every strategy gives the model's outputs, for every kind of gate and shape of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamicgate.inference.gpu.candidates import GIVEN, candidates_for
from tests.inference.gpu.models import GATES, Compile, feed_forwards, model_with
from tests.inference.models import assert_same_outputs, rows_near_threshold

STRATEGIES = ["dense", "dense, fused", "gated", "decode", GIVEN]


@pytest.mark.parametrize("favourite", STRATEGIES)
@pytest.mark.parametrize("gate", GATES)
def test_every_kind_of_gate_gives_the_models_outputs_by_every_strategy(
    gate: str, favourite: str, compile_as_on_gpu: Compile
) -> None:
    model, x = model_with(GATES[gate]), torch.randn(64, 20)
    compiled = compile_as_on_gpu(model, x, favourite)
    (layer,) = feed_forwards(compiled)
    assert layer.strategy_for(1).startswith(favourite) or favourite not in candidates_for(layer, 1)
    for rows in (1, 3, 16, 17, 64):
        assert_same_outputs(compiled, model, x[:rows], rows_near_threshold(model, x[:rows]))
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.rows > 0
    assert not any("stays in torch" in note for note in compiled.plan.notes)


@pytest.mark.parametrize("favourite", STRATEGIES)
@pytest.mark.parametrize("gate", GATES)
def test_a_nan_in_a_row_shows_by_every_strategy(gate: str, favourite: str, compile_as_on_gpu: Compile) -> None:
    model, x = model_with(GATES[gate]), torch.randn(64, 20)
    compiled = compile_as_on_gpu(model, x, favourite)
    (layer,) = feed_forwards(compiled)
    for rows in (1, 3, 16, 64):
        spoiled = x[:rows].clone()
        spoiled[rows // 2, 4] = torch.nan
        has_nan = torch.arange(rows) == rows // 2
        for found in (layer(spoiled), compiled(spoiled)):
            assert torch.equal(found.isnan().all(1), has_nan)
            assert torch.equal(found.isnan().any(1), has_nan)


@pytest.mark.parametrize("favourite", STRATEGIES)
@pytest.mark.parametrize(
    "options",
    [{"activation": "gelu", "bias": False}, {"activation": "silu", "value": True}, {"activation": "relu"}],
    ids=["gelu", "swiglu", "relu"],
)
def test_every_shape_gives_the_models_outputs_by_every_strategy(
    options: dict[str, Any], favourite: str, compile_as_on_gpu: Compile
) -> None:
    model, x = model_with(GATES["linear"], **options), torch.randn(6, 10, 20)
    compiled = compile_as_on_gpu(model, x, favourite)
    near = rows_near_threshold(model, x).reshape(len(x), -1).any(1)
    assert_same_outputs(compiled, model, x, near)
    names = [row.name for row in compiled.plan.chains[0][0].layers]
    assert names == (["1.up", "1.value", "1.down"] if options.get("value") else ["1.up", "1.down"])
