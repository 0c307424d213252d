"""Gates that open what is large (`net="magnitude"`), compiled on the CPU as thresholds of a native decoder."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, OPTConfig, OPTForCausalLM

import dynamicgate as dg
from dynamicgate import hf
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.decoder_parts import parts_of
from dynamicgate.inference.language.calls import Inputs
from dynamicgate.inference.language.native import NativeDecoder
from dynamicgate.inference.language.packed import decoder_of
from dynamicgate.inference.language.pipeline import native_body
from dynamicgate.inference.language.plan import BYTES, HALVES, WHOLE
from dynamicgate.inference.language.saving import native_decoder
from dynamicgate.inference.language.thresholds import LARGEST, all_above, thresholds_of
from dynamicgate.inference.language.verify import LanguageReference
from dynamicgate.inference.shadow_copy import copy_in_float64
from dynamicgate.ops import native
from tests.gating.test_magnitudes import MAGNITUDE, gate_of

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip


def dense(seed: int = 0, **options: Any) -> Any:
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**SIZES, **options})).eval()
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    return model


def put_thresholds_(model: nn.Module) -> None:
    """About half of the inputs and of the hidden units are above theirs, each unit with one of its own."""
    for name, gate in dg.named_gates(model).items():
        middle = 0.1 if name.endswith("down_proj") else 0.15 if name.endswith("act_fn") else 0.6
        nn.init.zeros_(gate.bias)
        gate.bias.data -= torch.log(middle * (0.5 + torch.rand_like(gate.bias)))


def gated(seed: int = 0, only: str = "", where: str = "mlp-inputs", **options: Any) -> Any:
    model = dg.gate_(dense(seed, **options), MAGNITUDE, where=where)
    if only and (taken := [name for name in dg.named_gates(model) if not name.endswith(tuple(only.split()))]):
        dg.ungate_(model, where=taken)
    put_thresholds_(model)
    return model


def tokens(*shape: int) -> Tensor:
    return torch.randint(2, 61, shape, generator=torch.Generator().manual_seed(1))


def quickly(model: nn.Module, ids: Tensor, **options: Any) -> CompiledModel:
    return dg.compile(model, {"input_ids": ids}, seconds=0.01, **options)


def fraction_close(got: Tensor, want: Tensor) -> float:
    """Of the positions; rounding may move a unit across its threshold, and then a position is another one."""
    return float(((got.double() - want).abs().amax(-1) <= 2e-5 * want.abs().max()).double().mean())


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    "only",
    [
        *("gate_proj up_proj down_proj", "down_proj", "gate_proj", "up_proj", "gate_proj down_proj"),
        *("gate_proj up_proj", "act_fn", "up_proj act_fn", "gate_proj up_proj down_proj act_fn"),
    ],
)
def test_what_layers_read_has_thresholds_in_the_plan(only: str) -> None:
    model, ids = gated(only=only, where="mlp-all"), tokens(2, 14)
    fast = quickly(model, ids)
    assert fast.plan.notes == []
    assert fast.plan.chosen == WHOLE
    found = fast.plan.verification
    assert found is not None
    assert found.rows > 3 * found.near_threshold
    wanted = copy_in_float64(model)
    with torch.no_grad():
        want = wanted(ids).logits
        assert fraction_close(fast(ids).logits, want) > 0.7
        assert fraction_close(fast(ids[:1]).logits, want[:1]) > 0.7
        cache = fast(ids[:1, :5], use_cache=True).past_key_values
        steps = []
        for token in ids[:1, 5:].split(1, dim=1):
            step = fast(token, past_key_values=cache, use_cache=True)
            steps.append(step.logits)
            cache = step.past_key_values
    assert fraction_close(torch.cat(steps, 1), want[:1, 5:]) > 0.7
    rates = fast.plan.open_rates
    assert len(rates) == 2 * len(only.split())
    assert all(0.2 < rate < 0.8 for rate in rates.values())
    assert f"gated: {len(rates)} layers" in str(fast.plan)
    prompt, one = fast.plan.regimes
    assert prompt.macs / prompt.tokens > 1.05 * one.macs / one.tokens or one.tokens > 1


@pytest.mark.usefixtures("whole")
def test_the_plan_counts_what_one_token_reads_and_multiplies() -> None:
    fast = quickly(gated(), tokens(1, 14))
    one = fast.plan.regimes[1]
    plain = quickly(dense(), tokens(1, 14)).plan.regimes[1]
    rate = sum(fast.plan.open_rates.values()) / 6
    ffn = 2 * 3 * 36 * 88
    assert one.macs == pytest.approx(plain.macs - (1.0 - rate) * ffn)
    assert one.megabytes == pytest.approx(plain.megabytes - 4e-6 * (1.0 - rate) * ffn * 96 / 88, rel=0.1)  # and padding


@pytest.mark.usefixtures("whole")
def test_the_plan_counts_factors_and_reads_the_units_that_they_open() -> None:
    fast = quickly(gated(where="mlp-all"), tokens(1, 14))
    prompt, one = fast.plan.regimes
    plain = quickly(dense(), tokens(1, 14)).plan.regimes
    left_out, read = 0.0, 0.0
    for layer in ("model.layers.0.mlp", "model.layers.1.mlp"):
        names = ("gate_proj", "up_proj", "down_proj", "act_fn")
        gate, up, down, factors = (fast.plan.open_rates[f"{layer}.{name}"] for name in names)
        left_out += 36 * 88 * (3 - gate - up * factors - down)
        read += 36 * 88 * (3 - gate - factors - down)
    assert one.macs == pytest.approx(plain[1].macs - left_out)
    assert prompt.macs == pytest.approx(plain[0].macs)
    assert one.megabytes == pytest.approx(plain[1].megabytes - 4e-6 * read, rel=0.1)


@pytest.mark.parametrize("hook", ["forward", "before", "of a gate"])
def test_other_hooks_on_the_activation_stay_in_torch(hook: str) -> None:
    model, ids = gated(where="mlp-all"), tokens(1, 8)
    act, other = model.model.layers[1].mlp.act_fn, model.model.layers[0].mlp.act_fn
    if hook == "forward":
        act.register_forward_hook(lambda _module, _args, out: 2.0 * out)
    elif hook == "before":
        act.register_forward_pre_hook(lambda _module, args: (2.0 * args[0],))
    else:
        act.register_forward_hook(other.gate.cut_after)
    with pytest.raises(ValueError, match=r"mlp\.act_fn has a hook, which would not run"):
        parts_of(model)
    fast = quickly(model, ids)
    assert "not native as a whole: model.layers.1.mlp.act_fn has a hook" in str(fast.plan)
    with torch.no_grad():
        torch.testing.assert_close(fast(ids).logits, model(ids).logits)


def test_a_gate_on_factors_that_does_not_act_is_none() -> None:
    model, ids = gated(only="act_fn", where="mlp-all"), tokens(1, 8)
    for layer in model.model.layers:
        layer.mlp.act_fn._forward_hooks.clear()
    with torch.no_grad():
        assert fraction_close(native_body(parts_of(model))(ids).logits, model(ids).logits.double()) == 1.0


@pytest.mark.parametrize("where", ["mlp-inputs", "mlp-all"])
@pytest.mark.parametrize("threads", [1, 2])
def test_all_open_and_all_closed_are_those_of_float64(threads: int, where: str) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for bias in (30.0, -60.0):
            model, ids = gated(num_hidden_layers=3, where=where), tokens(3, 20)
            for gate in dg.named_gates(model).values():
                nn.init.constant_(gate.bias, bias)
            with torch.no_grad():
                want = copy_in_float64(model)(ids).logits
                body = native_body(parts_of(model))
                assert fraction_close(body(ids).logits, want) == 1.0
                assert fraction_close(body(ids[:1, :1]).logits, want[:1, :1]) == 1.0
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("way", [WHOLE, HALVES, BYTES])
def test_plans_are_saved_copied_and_pickled_with_their_thresholds(
    way: str, tmp_path: Path, take: Callable[[str], None]
) -> None:
    take(way)
    model, ids = gated(where="mlp-all").to(torch.bfloat16).to(torch.float32), tokens(1, 14)
    fast = quickly(model, ids, weights="int8" if way == BYTES else None)
    assert fast.plan.chosen == way
    decoder = native_decoder(fast)[1]
    assert len(decoder.packed.thresholds()) == 8
    if way == WHOLE:
        mlps = [layer.mlp for layer in model.model.layers]
        gates = [part.gate for m in mlps for part in (m.gate_proj, m.up_proj, m.act_fn, m.down_proj)]
        for found, gate in zip(decoder.packed.thresholds(), gates, strict=True):
            assert torch.equal(found, thresholds_of(gate)), "verifying leaves them as they were"
    fast.save(tmp_path / "plan.safetensors")
    loaded = CompiledModel.load(tmp_path / "plan.safetensors", into=model)
    assert loaded.plan == fast.plan
    for again in (loaded, copy.deepcopy(fast), pickle.loads(pickle.dumps(fast))):
        for some in (ids, ids[:, :1]):
            assert torch.equal(again(some).logits, fast(some).logits)


@pytest.mark.parametrize(("only", "where"), [("down_proj", "mlp-inputs"), ("act_fn", "mlp-all")])
def test_weights_below_a_threshold_are_no_part_of_one_more_token(only: str, where: str) -> None:
    model = gated(only=only, where=where, num_hidden_layers=1)
    ids = tokens(1, 1)
    body = native_body(parts_of(model))
    with torch.no_grad(), dg.usage(model) as used:
        want = model(ids).logits
    closed = used[f"model.layers.0.mlp.{only}"].open[0, 0] == 0.0
    assert 0 < int(closed.sum()) < 88
    mlp = model.model.layers[0].mlp
    units = mlp.up_proj.weight.data if only == "act_fn" else mlp.down_proj.weight.data.T  # a row for each unit
    units[closed] = torch.nan
    with torch.no_grad():
        assert torch.equal(native_body(parts_of(model))(ids).logits, body(ids).logits)
        assert fraction_close(body(ids).logits, want.double()) == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block": 4}, "blocks of 4 units by their size"),
        ({"top_k": 8}, "a number of units by their size"),
        ({"always_open": 2}, "a number of units by their size"),
        ({"scale": True}, "scales units"),
        ({"soft_width": 0.5}, "scales units"),
        ({"evaluate": "soft"}, "closes nothing"),
    ],
)
@pytest.mark.parametrize("where", ["mlp-inputs", "mlp-all", "*act_fn"])
def test_other_gates_that_open_by_size_stay_in_torch_and_the_plan_says_why(
    options: dict[str, Any], words: str, where: str
) -> None:
    config, on_factors = dg.GateConfig(net="magnitude", reads="same", **options), where == "*act_fn"
    model = dg.gate_(dense(), config, where="mlp-all" if on_factors else where)
    if on_factors:
        dg.ungate_(model, where=[name for name in dg.named_gates(model) if not name.endswith("act_fn")])
    fast = quickly(model, tokens(1, 8))
    assert "not native as a whole: a gate of its feed-forward layers:" in str(fast.plan)
    assert words in str(fast.plan)
    with torch.no_grad():
        torch.testing.assert_close(fast(tokens(1, 8)).logits, model(tokens(1, 8)).logits)


@pytest.mark.parametrize(("one", "reads"), [("gate_proj", "previous"), ("act_fn", "same")])
def test_gates_of_two_kinds_in_one_layer_stay_in_torch(one: str, reads: Any) -> None:
    model = gated(only=one, where="mlp-all")
    dg.gate_(model, dg.GateConfig(block=16, net="linear", reads=reads), where="mlp")
    with pytest.raises(ValueError, match="beside one of another kind"):
        decoder_of(parts_of(model))
    nan = gated()
    next(iter(dg.named_gates(nan).values())).bias.data[3] = torch.nan
    with pytest.raises(ValueError, match="its thresholds are not numbers"):
        decoder_of(parts_of(nan))


def test_thresholds_are_those_of_the_gates() -> None:
    gate = gate_of(4)
    gate.bias.data = torch.tensor([0.0, 2.0, 40.0, -400.0])
    gate.tau.fill_(2.0)
    gate.theta.fill_(0.7)
    found = thresholds_of(gate)
    cut = 2.0 * torch.logit(torch.tensor(0.7)).double()
    torch.testing.assert_close(found[:2], (cut - gate.bias[:2]).exp().float())
    assert found[2:].tolist() == [0.0, pytest.approx(LARGEST)]
    just = torch.stack((0.999 * found, 1.001 * found))[:, :2]
    opened = gate(torch.cat((just, torch.ones(2, 2)), dim=1)).open
    assert opened[:, :2].tolist() == [[0.0, 0.0], [1.0, 1.0]]
    large = torch.tensor([[1.1 * LARGEST] * 4, [torch.inf] * 4, [0.9 * LARGEST] * 4])
    assert gate(large).open.tolist() == (large.abs() > found).float().tolist()


@pytest.mark.parametrize("which", [0, 2])
def test_a_plan_with_wrong_thresholds_or_weights_is_not_used(which: int) -> None:
    """Of inputs, and of factors."""
    model, ids = gated(num_hidden_layers=3, where="mlp-all"), tokens(1, 20)
    reference = LanguageReference(model, Inputs((ids,)), "past_key_values")
    body = native_body(parts_of(model)).eval()
    assert reference.verify(body) is not None
    decoder = native_decoder(body)[1]
    thresholds = decoder.packed.thresholds()
    first = thresholds[which].clone()
    thresholds[which].copy_(first.flip(0))
    with pytest.raises(ValueError, match="the plan is refused"):
        reference.verify(body)
    assert torch.equal(thresholds[which], first.flip(0))
    thresholds[which].copy_(first)
    assert reference.verify(body) is not None
    decoder.weights[:16] += 0.1
    with pytest.raises(ValueError, match="the plan is refused"):
        reference.verify(body)
    other = native_body(parts_of(gated(seed=1, num_hidden_layers=3, where="mlp-all"))).eval()
    with pytest.raises(ValueError, match="the plan is refused"):
        reference.verify(other)


def test_a_model_with_all_gates_open_computes_what_the_dense_one_does() -> None:
    model, ids = gated(where="mlp-all"), tokens(1, 9)
    with torch.no_grad():
        before = model(ids).logits
        with all_above(model):
            torch.testing.assert_close(model(ids).logits, dense()(ids).logits)
        assert torch.equal(model(ids).logits, before)


@pytest.mark.usefixtures("whole")
def test_a_converted_model_runs_as_a_whole() -> None:
    model = dense(num_hidden_layers=3)
    batches = [{"input_ids": tokens(2, 32)}]
    hf.convert_(model, 0.75, batches, net="magnitude", show=False)
    fast = quickly(model.eval(), tokens(1, 12))
    assert fast.plan.chosen == WHOLE
    assert any(isinstance(module, NativeDecoder) for module in fast.modules())


def test_layers_without_a_second_projection_have_thresholds_too() -> None:
    torch.manual_seed(0)
    sizes = {**SIZES, "ffn_dim": 88, "word_embed_proj_dim": 36, "max_position_embeddings": 64}
    model: Any = OPTForCausalLM(OPTConfig(**sizes)).eval()
    dg.gate_(model, MAGNITUDE, where="mlp-inputs")
    for gate in dg.named_gates(model).values():
        nn.init.constant_(gate.bias, 3.0)
    ids = tokens(1, 14)
    with torch.no_grad():
        want = copy_in_float64(model)(ids).logits
        assert fraction_close(native_body(parts_of(model))(ids).logits, want) > 0.7
