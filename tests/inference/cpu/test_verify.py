"""A compiled model that computes something else is refused; rows near a threshold are left out and counted."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference import verify_model
from tests.inference.models import compile_quickly, gated_mlp, with_three_implementations


@pytest.fixture
def model() -> nn.Module:
    return gated_mlp(dg.GateConfig(block=16))


def test_a_plan_that_computes_something_else_is_refused(model: nn.Module) -> None:
    x = torch.randn(32, 20)
    for compiled in (compile_quickly(model, x), with_three_implementations(model, x)):
        assert verify_model(compiled, model, x, batches=(1, 16, 256)).error < 1e-5
        largest = max((b for b in compiled.buffers() if b.is_floating_point()), key=Tensor.numel)
        largest.mul_(1.01)
        with pytest.raises(ValueError, match="does not compute what the model computes"):
            verify_model(compiled, model, x, batches=(1, 16, 256))


def test_a_plan_that_answers_with_nan_is_refused(model: nn.Module) -> None:
    x = torch.randn(32, 20)
    compiled = compile_quickly(model, x)
    for buffer in compiled.buffers():
        if buffer.is_floating_point():
            buffer.fill_(torch.nan)
    with pytest.raises(ValueError, match="refused"):
        verify_model(compiled, model, x)


def test_rows_near_a_threshold_are_counted_and_not_refused() -> None:
    model = gated_mlp(dg.GateConfig(net="linear", block=16, tau=1.0, theta=0.5))
    with torch.no_grad():  # exactly at the threshold for every row whose first feature is zero
        gate = dg.named_gates(model)["layers.1"]
        gate.net.weight.zero_()
        gate.net.weight[:, 0] = 1.0
        gate.net.bias.zero_()
    x = torch.randn(64, 20)
    x[:10, 0] = 0.0
    plan = compile_quickly(model, x, batches=(64,)).plan
    assert plan.verification is not None
    assert plan.verification.near_threshold >= 10
    assert plan.verification.rows >= 60
    assert f"{plan.verification.near_threshold} near a threshold left out" in str(plan)


def test_rows_that_would_open_a_removed_block_do_not_count_against_the_plan() -> None:
    model = gated_mlp(dg.GateConfig(net="linear", block=16), (20, 64, 5))
    x = torch.randn(200, 20)
    with torch.no_grad(), dg.usage(model) as used:
        model(x)
        closed = used["layers.1"].open[:, 2] == 0
    found = compile_quickly(model, x, calibration=x[closed], drop_never_open=True).plan.verification
    assert found is not None
    assert found.near_threshold >= int((~closed).sum())
