"""Compiled models on a real GPU."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.inference.gpu import decoding
from dynamicgate.inference.gpu.candidates import gated
from dynamicgate.inference.gpu.choose import DENSE_MARGIN
from dynamicgate.inference.gpu.choose_decoding import CompiledStep, PlainFFN
from dynamicgate.inference.gpu.cuda_graph import CapturedCall, captured
from dynamicgate.inference.gpu.decoding import CachedDecoder, OneToken, Pairs
from dynamicgate.inference.gpu.whole_model import WholeModel, captures_of
from dynamicgate.lab.language.gpt import GPT, GPTConfig
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
    (whole,) = (module for module in compiled.modules() if isinstance(module, WholeModel))
    whole.use_({})  # a graph of the whole model would run the layer as it was, in another order of sums
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


@pytest.mark.parametrize("maps", [1, 2, 3, 4, 5, 8])
def test_a_captured_call_does_not_destroy_what_it_handed_out(maps: int) -> None:
    """Maps of one width: where graphs share memory, the outputs of one may lie where another had its scratch."""

    def chain(x: Tensor) -> Tensor:
        for _ in range(maps):
            x = x + 1
        return x

    call = CapturedCall(chain, torch.zeros(1 << 22, device="cuda"))
    held: dict[int, Tensor] = {}
    order = random.Random(maps)
    for number in range(40):
        held[number] = call(torch.full((1 << 22,), float(number), device="cuda"))
        for value, y in held.items():
            assert bool((y == value + maps).all())
        for value in list(held):
            if len(held) > 3 or order.random() < 0.4:
                del held[value]


def test_outputs_are_overwritten_after_the_stream_that_had_them_has_read_them() -> None:
    call = CapturedCall(lambda x: x * 2, torch.zeros(1 << 22, device="cuda"))
    xs = [torch.full((1 << 22,), float(value), device="cuda") for value in range(3)]
    one, other = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(one):
        first = call(xs[0])
    with torch.cuda.stream(other):
        second = call(xs[1])
    with torch.cuda.stream(one):
        torch.cuda._sleep(1 << 28)
        copied = first.clone()
    del first
    with torch.cuda.stream(other):
        third = call(xs[2])
    torch.cuda.synchronize()
    assert [float(y.max()) for y in (copied, second, third)] == [0.0, 2.0, 4.0]


def test_views_are_handed_out_without_a_copy() -> None:
    layer = nn.Linear(64, 1 << 14, device="cuda")
    x = torch.randn(8, 64, 64, device="cuda")
    with torch.no_grad():
        call = CapturedCall(layer, x)
        first = call(x)
        address = first.data_ptr()
        torch.testing.assert_close(first, layer(x), rtol=1e-4, atol=1e-4)
        del first
        assert call(x).data_ptr() == address


def test_a_capture_that_fails_leaves_the_gpu_as_it_was() -> None:
    def too_large(x: Tensor) -> Tensor:  # a graph without any kernel would make torch warn, here an error of its own
        return (x + 1) + torch.empty(1 << 42 if torch.cuda.is_current_stream_capturing() else 1, device="cuda")[:1]

    x, now = torch.ones(4, 3, device="cuda"), torch.cuda.current_stream()
    found, (note,) = captures_of({"large": too_large, "fine": lambda x: x + 1}, x, 4)
    assert list(found) == ["fine, captured"]
    assert "OutOfMemoryError" in note
    assert torch.cuda.current_stream() == now
    assert bool((found["fine, captured"](x) == 2).all())


def test_a_compiled_step_is_captured_for_any_number_of_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "ROOM", 2)
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocabulary=50, features=64, layers=2, heads=4, width=128, context=64)).cuda().eval()
    parts = gpt.decoder_parts()
    step = OneToken(parts, [PlainFFN(block) for block in parts.blocks])
    decoder = CachedDecoder(CompiledStep(step, backend="eager"), step.cache, captured)
    theirs: Pairs = []
    with torch.no_grad():
        gpt(torch.randint(50, (2, 3), device="cuda"), cache=theirs)
        mine = list(theirs)
        for _ in range(24):
            ids = torch.randint(50, (2, 1), device="cuda")
            torch.testing.assert_close(decoder.step(ids, mine), gpt(ids, cache=theirs), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("sequences", [1, 2, 5])
def test_the_plan_says_how_each_number_of_sequences_decodes(sequences: int) -> None:
    torch.manual_seed(0)
    gpt = GPT(GPTConfig(vocabulary=200, features=128, layers=2, heads=4, width=512, context=64))
    dg.gate_(gpt, dg.GateConfig(block=64, net="linear", scale="softmax", always_open=1))
    gpt = gpt.cuda().to(torch.bfloat16).eval()
    ids = torch.randint(200, (sequences, 20), device="cuda")
    fast = dg.compile(gpt, ((ids,), {}), batches=(1, 5), seconds=1.0)
    planned = {regime.tokens: regime.chosen for regime in fast.plan.whole if regime.cached}
    assert planned.keys() == fast.body.decoders.keys() == {1, 5}
    for number, chosen in planned.items():
        assert (fast.body.decoders[number] is None) == (chosen == "layer by layer")
    with pytest.raises(ValueError, match="give that tensor"):
        dg.compile(gpt, ((ids,), {"cache": []}), batches=(1, 5), seconds=1.0)


@pytest.mark.parametrize("option", [{"drop_never_open": True}, {"memory": 1.1}, {"threads": 1}], ids=str)
def test_options_of_the_cpu_are_refused(option: dict[str, Any]) -> None:
    model, x = large_model(torch.bfloat16)
    with pytest.raises(ValueError, match="only chains on the CPU have these options"):
        dg.compile(model, x, **option)
