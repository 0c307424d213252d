"""What decoders of Hugging Face are made of, where the kernels can run them as a whole.

Three kinds, by the names of their parts: Llama (rotary positions, RMS or layer norms), GPT-2 and OPT (learned ones,
layer norms). Whatever a kind does not have in every model is looked at, and refused with the reason. Models of other
files of Transformers may have the same names, and differ for long inputs only, so that no example would show it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import PreTrainedModel

from dynamicgate.activations import of_module
from dynamicgate.hf.names import files_of, has_only, stranger
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts
from dynamicgate.linears import as_linear

LLAMA, GPT2, OPT = "model", "transformer", "model.decoder"  # where the decoder is, inside of a model with a head
NAMES = {
    LLAMA: {"embed_tokens", "layers", "norm", "rotary_emb"},
    GPT2: {"wte", "wpe", "drop", "h", "ln_f"},
    OPT: {"embed_tokens", "embed_positions", "layers", "final_layer_norm"},
}
LLAMA_BLOCK = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
LLAMA_ATTENTION = (PROJECTIONS, {*PROJECTIONS, "q_norm", "k_norm"})
GATED_MLP, PLAIN_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}, {"c_fc", "c_proj", "act"}
FILES = {
    LLAMA: files_of(("llama", "mistral", "qwen2", "qwen3", "starcoder2")), GPT2: files_of(("gpt2",)),
    OPT: files_of(("opt",)),
}  # fmt: skip
COMPUTING = {LLAMA: ("self_attn", "mlp"), GPT2: ("attn", "mlp"), OPT: ("self_attn",)}  # what is no layer or norm
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # the others change their speeds with the length
WORDS = "only its feed-forward layers are native"


class Found(NamedTuple):
    """A decoder inside a model. counts_padding: whether positions are counted from the first token of the text that is
    no padding where the caller does not number them."""

    parts: DecoderParts
    place: str
    counts_padding: bool = False


def find_decoder(model: nn.Module) -> Found:
    """The decoder of a model with a language head; ValueError with the reason if the kernels cannot run it."""
    head = getattr(model, "lm_head", None)
    if not isinstance(model, PreTrainedModel) or not isinstance(head, nn.Linear):
        raise ValueError(f"it is no language model with an lm_head: {WORDS}")
    for place, parts in ((LLAMA, _llama), (GPT2, _gpt2), (OPT, _opt)):
        inner = _inner(model, place)
        if inner is not None and has_only(inner, NAMES[place]):
            found = Found(parts(model, inner, head), place, counts_padding=place == OPT)
            _refuse_strangers(inner, place)
            return found
    raise ValueError(f"{type(model).__name__} is not of the kind of Llama, GPT-2 or OPT: {WORDS}")


def _llama(model: PreTrainedModel, inner: Any, head: nn.Linear) -> DecoderParts:
    config: Any = model.config
    rotary = inner.rotary_emb
    if getattr(rotary, "rope_type", "") not in FIXED_ROTATIONS or rotary.inv_freq.ndim != 1:
        raise ValueError(f"its rotation {getattr(rotary, 'rope_type', 'is unknown')!r} changes with the length")
    kinds = {*(getattr(config, "layer_types", None) or ["full_attention"])}
    window = getattr(config, "sliding_window", None)
    if kinds != {"full_attention"} or (getattr(config, "use_sliding_window", True) and window is not None):
        raise ValueError("its attention has a sliding window")
    blocks = tuple(map(_llama_block, inner.layers))
    if any(2 * len(rotary.inv_freq) * config.num_attention_heads != block.mix.in_features for block in blocks):
        raise ValueError("its rotation turns part of each head only")
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return DecoderParts(
        inner.embed_tokens, blocks, inner.norm, head, config.num_attention_heads, key_heads, rotary.inv_freq,
        _scale(block.self_attn.scaling for block in inner.layers), float(rotary.attention_scaling),
    )  # fmt: skip


def _llama_block(block: Any) -> BlockParts:
    attention: Any = getattr(block, "self_attn", None)
    mlp: Any = getattr(block, "mlp", None)
    known = has_only(block, LLAMA_BLOCK) and any(has_only(attention, names) for names in LLAMA_ATTENTION)
    gated = has_only(mlp, GATED_MLP)
    if not known or not (gated or has_only(mlp, PLAIN_MLP)):
        raise ValueError(f"{type(block).__name__} is not of the kind of Llama: {WORDS}")
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    up, value, down = (mlp.gate_proj, mlp.up_proj, mlp.down_proj) if gated else (mlp.c_fc, None, mlp.c_proj)
    return BlockParts(
        block.input_layernorm, qkv, attention.o_proj, block.post_attention_layernorm, up, value, down,
        _activation(mlp.act_fn if gated else mlp.act), getattr(attention, "q_norm", None),
        getattr(attention, "k_norm", None), mlp.act_fn if gated else mlp.act,
    )  # fmt: skip


def _gpt2(model: PreTrainedModel, inner: Any, head: nn.Linear) -> DecoderParts:
    config: Any = model.config
    if any(getattr(config, name, False) for name in ("add_cross_attention", "scale_attn_by_inverse_layer_idx")):
        raise ValueError("its attention looks at an encoder, or its layers scale their scores differently")
    heads, size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    scale = size**-0.5 if getattr(config, "scale_attn_weights", True) else 1.0
    return DecoderParts(
        inner.wte, tuple(map(_gpt2_block, inner.h)), inner.ln_f, head, heads, heads, _no_rotation(size), scale,
        positions=_rows(inner.wpe, 0),
    )  # fmt: skip


def _gpt2_block(block: Any) -> BlockParts:
    attention, mlp = block.attn, block.mlp
    dropouts = {"attn_dropout", "resid_dropout"}
    if not (
        has_only(block, {"ln_1", "attn", "ln_2", "mlp"})
        and has_only(attention, {"c_attn", "c_proj", *dropouts})
        and has_only(mlp, {"c_fc", "c_proj", "act", "dropout"})
    ):
        raise ValueError(f"{type(block).__name__} is not that of GPT-2: {WORDS}")
    return BlockParts(
        block.ln_1, (as_linear(attention.c_attn),), as_linear(attention.c_proj), block.ln_2, as_linear(mlp.c_fc), None,
        as_linear(mlp.c_proj), _activation(mlp.act),
    )  # fmt: skip


def _opt(model: PreTrainedModel, inner: Any, head: nn.Linear) -> DecoderParts:
    config: Any = model.config
    if not config.do_layer_norm_before or config.word_embed_proj_dim != config.hidden_size:
        raise ValueError("its norms stand behind its layers, or its tokens have fewer features than its layers")
    size = config.hidden_size // config.num_attention_heads
    return DecoderParts(
        inner.embed_tokens, tuple(map(_opt_block, inner.layers)), inner.final_layer_norm, head,
        config.num_attention_heads, config.num_attention_heads, _no_rotation(size),
        _scale(block.self_attn.scaling for block in inner.layers),
        positions=_rows(inner.embed_positions, inner.embed_positions.offset),
    )  # fmt: skip


def _opt_block(block: Any) -> BlockParts:
    names = {"self_attn", "activation_fn", "self_attn_layer_norm", "fc1", "fc2", "final_layer_norm"}
    attention = block.self_attn
    if not (has_only(block, names) and has_only(attention, {"q_proj", "k_proj", "v_proj", "out_proj"})):
        raise ValueError(f"{type(block).__name__} is not that of OPT: {WORDS}")
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    return BlockParts(
        block.self_attn_layer_norm, qkv, attention.out_proj, block.final_layer_norm, block.fc1, None, block.fc2,
        _activation(block.activation_fn),
    )  # fmt: skip


def _inner(model: nn.Module, place: str) -> nn.Module | None:
    found: Any = model
    for name in place.split("."):
        found = getattr(found, name, None)
    return found if isinstance(found, nn.Module) else None


def _refuse_strangers(inner: Any, place: str) -> None:
    layers = inner.h if place == GPT2 else inner.layers
    within = [getattr(layer, name) for layer in layers for name in COMPUTING[place]]
    rotary = [inner.rotary_emb] if place == LLAMA else []
    if found := stranger([inner, *layers, *within, *rotary], FILES[place]):
        raise ValueError(f"{found} is not known to compute what its names say: {WORDS}")


def _activation(module: nn.Module) -> str:
    found = of_module(module)
    if found is None:
        raise ValueError(f"its activation {type(module).__name__} is not known")
    return found


def _scale(of_layers: Any) -> float:
    scales = {float(scale) for scale in of_layers}
    if len(scales) != 1:
        raise ValueError("its layers scale their scores differently")
    return scales.pop()


def _no_rotation(size: int) -> torch.Tensor:
    if size % 2:
        raise ValueError(f"its heads have {size} features, and the kernels need an even number")
    return torch.zeros(size // 2)


def _rows(embedding: nn.Embedding, first: int) -> torch.Tensor:
    if embedding.max_norm is not None:
        raise ValueError("its embedding of positions is not a plain one")
    return embedding.weight.detach()[first:]
