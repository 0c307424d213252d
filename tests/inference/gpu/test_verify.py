"""A layer that computes something else is refused; rows near a threshold are left out and counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.inference import Verification
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import find_ffns
from dynamicgate.inference.gpu.lower import lower_ffn
from dynamicgate.inference.gpu.verify import LayerReference, verify_layer
from tests.inference.gpu.models import GATES, Compile, model_with


def test_a_layer_that_is_wrong_or_answers_with_nan_is_refused() -> None:
    model = model_with(GATES["linear"])
    (module,), _ = find_ffns(model, dg.named_gates(model))
    (ffn,) = module.ffns
    reference = LayerReference(ffn, torch.randn(64, 20))
    layer = FeedForward(lower_ffn(ffn))
    assert verify_layer(reference, layer, [1, 16]).error < 1e-5
    for wrong in (lambda x: layer(x) * 1.001, lambda x: layer(x) * torch.nan, lambda x: layer(x).roll(1, 0)):
        with pytest.raises(ValueError, match="does not compute what the model computes"):
            verify_layer(reference, wrong, [16])


def test_where_every_row_is_near_a_threshold_only_dense_strategies_are_trusted(compile_as_on_gpu: Compile) -> None:
    model = model_with(GATES["linear"])
    gate = dg.named_gates(model)["1.down"]
    nn.init.zeros_(gate.net.weight)
    nn.init.zeros_(gate.net.bias)
    plan = compile_as_on_gpu(model, torch.randn(64, 20)).plan
    assert plan.verification == Verification(rows=0, near_threshold=128, error=0.0)
    assert "only dense strategies can be trusted" in str(plan)
    assert all(regime.chosen.startswith("dense") for regime in plan.chains[0])


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # torch's, on processors without bfloat16
@pytest.mark.parametrize(("net", "rank", "seed"), [("linear", None, 10), ("low-rank", 3, 4), ("two-layer", 5, 9)])
def test_a_layer_in_bfloat16_is_not_refused_for_ranks_that_rounding_changes(
    net: Any, rank: int | None, seed: int
) -> None:
    model = model_with(dg.GateConfig(block=4, top_k=6, net=net, rank=rank)).bfloat16()
    (module,), _ = find_ffns(model, dg.named_gates(model))
    (ffn,) = module.ffns
    rows = torch.randn(256, 20, generator=torch.Generator().manual_seed(seed)).bfloat16()
    reference = LayerReference(ffn, rows)
    assert verify_layer(reference, FeedForward(lower_ffn(ffn)), [256]).rows == 256
