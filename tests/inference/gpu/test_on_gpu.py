"""Compiled models on a real GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference.gpu.candidates import gated
from dynamicgate.inference.gpu.choose import DENSE_MARGIN
from dynamicgate.inference.gpu.cuda_graph import CapturedCall
from tests.inference.gpu.models import feed_forwards

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:TensorFloat32:UserWarning"),
]


def large_model(dtype: torch.dtype, **options: Any) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(512), dg.nn.FFN(512, 2048, **options), nn.Linear(512, 16))
    dg.gate_(model, dg.GateConfig(block=128, net="linear"), where="1.down")
    with torch.no_grad():
        gate = dg.named_gates(model)["1.down"]
        gate.net.weight.normal_(std=0.05)
        gate.net.bias.fill_(-0.8)
    return model.cuda().to(dtype).eval(), torch.randn(1024, 512, device="cuda", dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"activation": "silu", "value": True}], ids=["relu", "swiglu"])
def test_a_plan_gives_the_models_outputs_for_any_number_of_tokens(options: dict[str, Any], dtype: torch.dtype) -> None:
    model, x = large_model(dtype, **options)
    compiled = dg.compile(model, x, batches=(1, 16, 1024), seconds=1.0)
    print(compiled.plan)
    assert compiled.plan.verification is not None
    assert compiled.plan.verification.rows > 0
    assert not any("does not run here" in note for note in compiled.plan.notes), compiled.plan.notes
    for rows in (1, 2, 16, 17, 300, 1024):
        with torch.no_grad():
            mine, theirs = compiled(x[:rows]).double(), model(x[:rows]).double()
        wrong = (mine - theirs).norm(dim=1) / theirs.norm(dim=1)
        limit = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}[dtype]
        # in 16 bits a logit at its threshold may fall on either side of it, a few times in a thousand rows
        assert float((wrong < limit).double().mean()) >= (1.0 if dtype is torch.float32 and rows < 1024 else 0.5)
        assert float(wrong.median()) < limit


def test_every_number_of_tokens_runs_as_fast_as_its_fastest_strategy() -> None:
    model, x = large_model(torch.bfloat16)
    compiled = dg.compile(model, x, batches=(1, 1024), seconds=2.0)
    for regime in compiled.plan.chains[0]:
        assert regime.chosen_us <= min(regime.times.values()) / DENSE_MARGIN


def test_the_whole_model_runs_by_the_fastest_way_for_each_shape() -> None:
    model, x = large_model(torch.bfloat16)
    compiled = dg.compile(model, x, batches=(1, 64), seconds=2.0)
    print(compiled.plan)
    assert [(regime.tokens, regime.shape) for regime in compiled.plan.whole] == [(1, (1, 512)), (64, (64, 512))]
    assert all({"layer by layer", "one graph", "one graph, captured"} <= r.times.keys() for r in compiled.plan.whole)
    assert not any("as one graph" in note for note in compiled.plan.notes), compiled.plan.notes
    for rows in (1, 2, 64):
        with torch.no_grad():
            one, other = compiled(x[:rows]), compiled(x[-rows:])
            torch.testing.assert_close(one, model(x[:rows]), rtol=5e-2, atol=5e-2)
            torch.testing.assert_close(other, model(x[-rows:]), rtol=5e-2, atol=5e-2)


def test_a_captured_graph_is_not_replayed_inside_the_users_own_graph() -> None:
    model, x = large_model(torch.bfloat16)
    compiled = dg.compile(model, x, batches=(1,), seconds=0.5)
    (layer,) = feed_forwards(compiled)
    layer.use_([(None, "gated")], {1: CapturedCall(lambda rows: gated(layer, rows), x[:1])})
    here = x[:1].clone()
    with torch.no_grad():
        expected = compiled(here)
        graph = torch.cuda.CUDAGraph()
        aside = torch.cuda.Stream()
        with torch.cuda.stream(aside):
            compiled(here)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            y = compiled(here)
        here.copy_(x[5:6])
        graph.replay()
        torch.testing.assert_close(y, compiled(x[5:6]))
        assert not torch.equal(y, expected)
        assert copy.deepcopy(layer).captured == {1: None}


def test_large_outputs_of_a_captured_call_stay_as_they_are_while_they_are_held() -> None:
    weight = torch.randn(1 << 14, 64, device="cuda")
    call = CapturedCall(lambda x: x @ weight.T, torch.randn(512, 64, device="cuda"))
    xs = [torch.randn(512, 64, device="cuda") for _ in range(6)]
    held = [call(x) for x in xs]
    for x, y in zip(xs, held, strict=True):
        torch.testing.assert_close(y, x @ weight.T)
    first = held[0].data_ptr()
    del y, held
    assert call(xs[0]).data_ptr() == first


@pytest.mark.parametrize("option", [{"drop_never_open": True}, {"memory": 1.1}, {"threads": 1}], ids=str)
def test_options_of_the_cpu_are_refused(option: dict[str, Any]) -> None:
    model, x = large_model(torch.bfloat16)
    with pytest.raises(ValueError, match="only chains on the CPU have these options"):
        dg.compile(model, x, **option)
