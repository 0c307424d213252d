"""Which strategy runs which number of tokens, from invented times, and what the plan shows of it."""

from __future__ import annotations

import pytest
import torch

import dynamicgate as dg
from dynamicgate.inference.gpu.choose import fastest
from tests.inference.gpu.models import GATES, Compile, feed_forwards, model_with


def test_dense_is_chosen_unless_another_strategy_is_clearly_faster() -> None:
    times = {"ungated": 1.0, "dense": 2.0, "dense, compiled": 1.5, "gated": 1.49, "decode": 1.8}
    assert fastest(times) == "dense, compiled"
    assert fastest(times | {"gated": 1.4}) == "gated"
    assert fastest(times | {"decode": 1.0}) == "decode"


def test_the_strategy_for_decoding_never_runs_more_tokens_than_it_can(compile_as_on_gpu: Compile) -> None:
    model, x = model_with(GATES["linear"]), torch.randn(64, 20)
    (layer,) = feed_forwards(compile_as_on_gpu(model, x, "decode", batches=(4, 16)))
    assert [layer.strategy_for(tokens) for tokens in (1, 4, 16, 17, 400)] == ["decode"] * 3 + ["dense"] * 2
    (layer,) = feed_forwards(compile_as_on_gpu(model, x, "decode", batches=(16, 1024)))
    assert [layer.strategy_for(tokens) for tokens in (16, 17, 128, 2000)] == ["decode"] + ["dense"] * 3


def test_the_plan_shows_the_layers_their_strategies_and_their_macs(compile_as_on_gpu: Compile) -> None:
    model, x = model_with(GATES["linear"]), torch.randn(64, 20)
    plan = compile_as_on_gpu(model, x).plan
    assert "block-gated (32)" in str(plan)
    with dg.usage(model) as used:
        model(x)
    opened = float(used["1.down"].open.sum(1).mean()) * 32
    first = plan.chains[0][0]
    assert [row.macs for row in first.layers] == pytest.approx([opened * 20 + 20 * 3, opened * 24])
    assert sum(row.chosen_us for row in first.layers) == pytest.approx(first.chosen_us)
    assert sum(row.dense_us for row in first.layers) == pytest.approx(first.dense_us)
