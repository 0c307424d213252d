"""Hugging Face models compiled on the CPU: decoders of known kinds as a whole, others layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    StableLmConfig,
    StableLmForCausalLM,
    Starcoder2Config,
    Starcoder2ForCausalLM,
    StaticCache,
)

import dynamicgate as dg
from dynamicgate.hf.decoder import decoder_parts
from dynamicgate.inference import CompiledModel
from dynamicgate.inference.language.plan import BY_LAYER, BYTES, HALVES, WHOLE, LanguagePlan
from dynamicgate.ops import native

pytestmark = pytest.mark.skipif(bool(native.missing()), reason="no compiled kernels")
SIZES: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 36, "intermediate_size": 88, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False}),
    "llama, tied": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": True}),
    "llama 3 rotation": (
        LlamaForCausalLM, LlamaConfig,
        {"rope_parameters": {
            "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        }},
    ),
    "qwen 2, with biases": (Qwen2ForCausalLM, Qwen2Config, {}),
    "qwen 3, norms of queries and keys": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 6}),
    "starcoder 2, layer norms": (Starcoder2ForCausalLM, Starcoder2Config, {"sliding_window": None}),
    "gpt-2": (GPT2LMHeadModel, GPT2Config, {"n_positions": 64}),
    "opt": (OPTForCausalLM, OPTConfig, {"ffn_dim": 88, "word_embed_proj_dim": 36, "max_position_embeddings": 64}),
}  # fmt: skip


def gated(kind: str) -> Any:
    torch.manual_seed(0)
    model_class, config_class, options = KINDS[kind]
    model = model_class(config_class(**{**SIZES, **options})).eval()
    return with_gates(model)


def with_gates(model: nn.Module) -> Any:
    for parameter in model.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5)
    dg.gate_(model, dg.GateConfig(block=16, net="linear"), where="mlp")
    for gate in dg.named_gates(model).values():
        nn.init.zeros_(gate.net.bias)
    return model.eval()


def quickly(model: nn.Module, example: Any) -> CompiledModel:
    return dg.compile(model, example, seconds=0.01)


def is_close(got: torch.Tensor, want: torch.Tensor) -> bool:
    return float((got - want).abs().max()) <= 2e-5 * float(want.abs().max())


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("kind", KINDS)
def test_a_decoder_runs_as_a_whole_and_generates_the_same(kind: str) -> None:
    model = gated(kind)
    ids = torch.randint(2, 61, (3, 14))
    mask = torch.ones_like(ids)
    mask[1, :5], mask[2, :13] = 0, 0
    fast = quickly(model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert isinstance(fast.plan, LanguagePlan)
    assert fast.plan.notes == []
    assert fast.plan.chosen == WHOLE
    with torch.no_grad():
        assert is_close(fast(ids).logits, model(ids).logits)
        assert is_close(fast(input_ids=ids, logits_to_keep=1).logits, model(input_ids=ids, logits_to_keep=1).logits)
    for options in ({"num_beams": 1}, {"num_beams": 3}):
        want = model.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, **options)
        assert torch.equal(fast.generate(ids, attention_mask=mask, max_new_tokens=20, do_sample=False, **options), want)


@pytest.mark.parametrize("kind", ["llama", "llama, tied", "gpt-2"])
def test_a_checkpoint_in_bfloat16_runs_from_half_of_the_bytes(
    kind: str, tmp_path: Path, take: Callable[[str], None]
) -> None:
    model = gated(kind).to(torch.bfloat16).to(torch.float32)
    ids = torch.randint(2, 61, (2, 14))
    take(HALVES)
    fast = quickly(model, {"input_ids": ids})
    assert fast.plan.chosen == HALVES
    with torch.no_grad():
        assert is_close(fast(ids).logits, model(ids).logits)
    want = model.generate(ids, max_new_tokens=20, do_sample=False)
    assert torch.equal(fast.generate(ids, max_new_tokens=20, do_sample=False), want)
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors", into=model)
    assert torch.equal(again(ids).logits, fast(ids).logits)


@pytest.mark.usefixtures("whole")
def test_a_cache_goes_from_torch_to_the_plan_and_back() -> None:
    model = gated("llama")
    ids = torch.randint(2, 61, (2, 14))
    fast = quickly(model, {"input_ids": ids})
    assert fast.plan.chosen == WHOLE
    with torch.no_grad():
        want = model(ids).logits
        cache = DynamicCache(config=model.config)
        model(ids[:, :5], past_key_values=cache)
        middle = fast(ids[:, 5:9], past_key_values=cache, use_cache=True).logits
        last = model(ids[:, 9:], past_key_values=cache).logits
    assert is_close(middle, want[:, 5:9])
    assert is_close(last, want[:, 9:])
    assert cache.get_seq_length() == 14


@pytest.mark.usefixtures("whole")
def test_what_a_native_decoder_cannot_do_is_refused_with_a_remedy() -> None:
    model = gated("llama")
    ids = torch.randint(2, 61, (2, 6))
    fast = quickly(model, {"input_ids": ids})
    assert fast.plan.chosen == WHOLE
    right = torch.ones_like(ids)
    right[0, 4:] = 0
    with pytest.raises(ValueError, match="padding_side='left'"):
        fast(input_ids=ids, attention_mask=right)
    with pytest.raises(ValueError, match="leave out output_hidden_states"):
        fast(input_ids=ids, output_hidden_states=True)
    static = StaticCache(config=model.config, max_cache_len=20)
    with pytest.raises(ValueError, match="DynamicCache"):
        fast(input_ids=ids, past_key_values=static)
    with pytest.raises(IndexError):
        fast(input_ids=torch.tensor([[61]]))


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize("kind", ["gpt-2", "opt"])
def test_learned_positions_end_where_those_of_the_model_do(kind: str) -> None:
    model = gated(kind)
    fast = quickly(model, {"input_ids": torch.randint(2, 61, (2, 6))})
    assert fast.plan.chosen == WHOLE
    ids, mask = torch.randint(2, 61, (2, 64)), torch.ones(2, 64, dtype=torch.long)
    with torch.no_grad():
        assert is_close(fast(ids).logits, model(ids).logits)
        mask[1, :9] = 0
        got, want = (one(input_ids=ids, attention_mask=mask).logits for one in (fast, model))
        assert is_close(got[0], want[0])
        assert is_close(got[1, 9:], want[1, 9:])
    with pytest.raises(IndexError, match="64 positions, received number 64"):
        fast(torch.randint(2, 61, (1, 65)))
    if kind == "gpt-2":
        with pytest.raises(ValueError, match="leave out token_type_ids"):
            fast(input_ids=ids, token_type_ids=torch.zeros_like(ids))


def test_gpt_2_with_weights_rounded_to_int8(take: Callable[[str], None]) -> None:
    model = gated("gpt-2")
    ids = torch.randint(2, 61, (2, 20))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    take(BYTES)
    fast = dg.compile(model, {"input_ids": ids}, seconds=0.01, weights="int8")
    assert fast.plan.chosen == BYTES
    assert fast.plan.rounding is not None  # type: ignore[union-attr]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_rotation_of_part_of_each_head_is_refused() -> None:
    model = gated("llama")
    model.model.rotary_emb.inv_freq = model.model.rotary_emb.inv_freq[:1]
    with pytest.raises(ValueError, match="turns part of each head"):
        decoder_parts(model)


@pytest.mark.parametrize("kind", ["llama", "llama, tied", "gpt-2", "opt"])
def test_a_plan_is_saved_and_loaded_into_the_model(kind: str, tmp_path: Path) -> None:
    model = gated(kind)
    ids = torch.randint(2, 61, (1, 6))
    fast = quickly(model, {"input_ids": ids})
    fast.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors", into=model)
    with torch.no_grad():
        assert torch.equal(again(ids).logits, fast(ids).logits)
    with pytest.raises(ValueError, match="into=model"):
        CompiledModel.load(tmp_path / "plan.safetensors")


OTHERS: dict[str, tuple[Any, Any, dict[str, Any], str]] = {
    "a sliding window": (MistralForCausalLM, MistralConfig, {**SIZES, "sliding_window": 8}, "sliding window"),
    "norms behind layers": (Olmo2ForCausalLM, Olmo2Config, SIZES, "not of the kind of Llama"),
    "part of a head turned": (
        StableLmForCausalLM,
        StableLmConfig,
        {**SIZES, "partial_rotary_factor": 0.34},
        "kind of Llama",
    ),
    "layers scaled apart": (
        GPT2LMHeadModel,
        GPT2Config,
        {**SIZES, "scale_attn_by_inverse_layer_idx": True},
        "scale their scores differently",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_decoders_run_layer_by_layer_and_say_why(name: str) -> None:
    torch.manual_seed(0)
    model_class, config_class, options, reason = OTHERS[name]
    model = with_gates(model_class(config_class(**options)))
    ids = torch.randint(2, 61, (2, 14))
    fast = quickly(model, {"input_ids": ids})
    assert reason in " ".join(fast.plan.notes)
    assert WHOLE not in fast.plan.regimes[0].times
    assert BY_LAYER in fast.plan.regimes[0].times
    with torch.no_grad():
        assert is_close(fast(input_ids=ids).logits, model(input_ids=ids).logits)
    want = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)
    assert torch.equal(fast.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0), want)


def test_an_example_that_is_padded_on_the_left_is_compared_where_there_is_text() -> None:
    model, ids = gated("llama"), torch.randint(2, 61, (2, 9))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    fast = quickly(model, {"input_ids": ids * mask, "attention_mask": mask})
    assert fast.plan.notes == []
    assert WHOLE in fast.plan.regimes[0].times  # type: ignore[union-attr]


@pytest.mark.usefixtures("whole")
def test_sequences_that_share_a_row_are_refused() -> None:
    fast = quickly(gated("llama"), torch.randint(2, 61, (1, 9)))
    assert fast.plan.chosen == WHOLE
    with pytest.raises(ValueError, match="unpack sequences that share a row"):
        fast(torch.randint(2, 61, (1, 6)), position_ids=torch.tensor([[0, 1, 2, 0, 1, 2]]), use_cache=False)


@pytest.mark.parametrize("left", [0, 3, 20])
def test_an_example_may_fill_the_positions_that_a_model_has(left: int) -> None:
    fast = quickly(gated("gpt-2"), torch.randint(2, 61, (1, 64 - left)))
    names = [regime.name for regime in fast.plan.regimes]  # type: ignore[union-attr]
    assert names == [f"a prompt of {64 - left} tokens"] + [f"one more token after {64 - left}"] * (left == 20)


def test_a_model_that_was_asked_for_hidden_states_is_compiled_as_before() -> None:
    model, ids = gated("llama"), torch.randint(2, 61, (1, 9))
    model(ids, output_hidden_states=True)
    assert model.model.layers[0]._forward_hooks, "Transformers leaves its hooks there"
    fast = quickly(model, ids)
    assert fast.plan.notes == []
    with pytest.raises(ValueError, match="leave out output_hidden_states"):
        fast(ids, output_hidden_states=True)


STRANGERS = {
    "GPTNeoForCausalLM": "is not that of GPT-2", "GPTBigCodeForCausalLM": "is not that of GPT-2",
    "Ministral3ForCausalLM": "is not known to compute",
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*torch.jit.script")  # a file of Transformers uses it
@pytest.mark.parametrize("name", STRANGERS)
def test_models_with_the_same_names_from_other_files_are_not_taken_as_a_whole(name: str) -> None:
    """They differ from what their names say, one of them only after 16,384 positions."""
    model_class = getattr(transformers, name, None)
    if model_class is None:
        pytest.skip(f"this version of Transformers has no {name}")
    sizes = {**SIZES, "max_position_embeddings": 64, "head_dim": 6}
    if name == "GPTNeoForCausalLM":
        sizes |= {"num_layers": 2, "num_heads": 6, "attention_types": [[["global"], 2]]}
    torch.manual_seed(0)
    fast = quickly(model_class(model_class.config_class(**sizes)).eval(), torch.randint(2, 61, (1, 9)))
    assert STRANGERS[name] in " ".join(fast.plan.notes)


def test_a_forward_that_was_replaced_is_not_taken_as_a_whole() -> None:
    model = gated("llama")
    attention = model.model.layers[1].self_attn
    attention.forward = attention.forward  # as somebody does who changes it for long texts only
    notes = quickly(model, torch.randint(2, 61, (1, 9))).plan.notes
    assert "LlamaAttention is not known to compute what its names say" in " ".join(notes)
