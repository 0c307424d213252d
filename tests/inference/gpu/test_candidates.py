"""Every strategy gives the model's outputs, for every kind of gate and shape of layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.gpu.candidates import GIVEN, candidates_for
from dynamicgate.inference.gpu.candidates import STRATEGIES as STRATEGIES_BY_NAME
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import find_ffns
from dynamicgate.inference.gpu.lower import lower_ffn
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


def test_layers_that_differ_in_numbers_are_compiled_once() -> None:
    layers = []
    for threshold in (0.3, 0.6, 0.7):
        model = model_with(GateConfig(net="linear", block=4, theta=threshold))
        (ffn,) = find_ffns(model, named_gates(model))[0][0].ffns
        layers.append(FeedForward(lower_ffn(ffn)))
    counter = CompileCounter()
    x = torch.randn(16, 20)
    for name in ("dense", "gated", GIVEN):
        before, compiled = counter.frame_count, torch.compile(STRATEGIES_BY_NAME[name], backend=counter)
        for layer in layers:
            with torch.no_grad():
                torch.testing.assert_close(compiled(layer, x), STRATEGIES_BY_NAME[name](layer, x))
        assert counter.frame_count == before + 1, name
    assert len({float(layer.gate.cut) for layer in layers}) == 3
    half = layers[0].to(torch.bfloat16)
    assert half.gate.cut.dtype is torch.float32


@pytest.mark.parametrize("name", ["gated", "decode", GIVEN])
@pytest.mark.parametrize("gate", GATES)
def test_a_strategy_is_part_of_one_graph(gate: str, name: str) -> None:
    model = model_with(GATES[gate])
    (ffn,) = find_ffns(model, named_gates(model))[0][0].ffns
    layer, x = FeedForward(lower_ffn(ffn)), torch.randn(5, 20)
    if name not in candidates_for(layer, len(x)):
        return
    torch._dynamo.reset()  # one function is compiled for few layers that differ
    whole = torch.compile(
        lambda layer, x: torch.relu(STRATEGIES_BY_NAME[name](layer, x)), fullgraph=True, backend="aot_eager"
    )
    with torch.no_grad():
        torch.testing.assert_close(whole(layer, x), torch.relu(STRATEGIES_BY_NAME["dense"](layer, x)))
