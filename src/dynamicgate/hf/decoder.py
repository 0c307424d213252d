"""Decoders of the Llama kind (RMS norms, rotary positions, grouped keys, SwiGLU) as native decoders on the CPU.

Shapes in names: B sequences, T new positions, S positions, D features.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from dynamicgate.activations import of_module
from dynamicgate.inference.decoder_parts import BlockParts, DecoderParts
from dynamicgate.inference.language.native import NativeDecoder, Pairs

OF_BLOCK = {"input_layernorm", "self_attn", "post_attention_layernorm", "mlp"}
OF_ATTENTION = {"q_proj", "k_proj", "v_proj", "o_proj"}
OF_MLP = {"gate_proj", "up_proj", "down_proj", "act_fn"}
FIXED_ROTATIONS = ("default", "linear", "llama3", "yarn")  # the others change their speeds with the length


def decoder_parts(model: nn.Module) -> DecoderParts:
    """The parts of a model with a language head; ValueError if it is of another kind."""
    inner: Any = getattr(model, "model", None)
    head = getattr(model, "lm_head", None)
    if not isinstance(model, PreTrainedModel) or inner is None or not isinstance(head, nn.Linear):
        raise ValueError("it is no language model of the Llama kind (model and lm_head): only its feed-forward layers")
    rotary = getattr(inner, "rotary_emb", None)
    names = {"embed_tokens", "layers", "norm", "rotary_emb"}
    if rotary is None or not _has_only(inner, names):
        raise ValueError(f"{type(model).__name__} is not of the Llama kind: only its feed-forward layers are native")
    config: Any = model.config
    if getattr(rotary, "rope_type", "") not in FIXED_ROTATIONS or rotary.inv_freq.ndim != 1:
        raise ValueError(f"its rotation {getattr(rotary, 'rope_type', 'is unknown')!r} changes with the length")
    kinds = {*(getattr(config, "layer_types", None) or ["full_attention"])}
    if kinds != {"full_attention"} or (getattr(config, "use_sliding_window", True) and _window(config) is not None):
        raise ValueError("its attention has a sliding window")
    if getattr(config, "final_logit_softcapping", None) or getattr(config, "attn_logit_softcapping", None):
        raise ValueError("its scores are capped")
    scales = {block.self_attn.scaling for block in inner.layers}
    if len(scales) != 1:
        raise ValueError("its layers scale their scores differently")
    key_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    return DecoderParts(
        inner.embed_tokens, tuple(map(_block, inner.layers)), inner.norm, head, config.num_attention_heads, key_heads,
        rotary.inv_freq, float(scales.pop()), float(rotary.attention_scaling),
        lambda decoder: with_decoder(model, decoder),
    )  # fmt: skip


def with_decoder(model: PreTrainedModel, decoder: NativeDecoder) -> nn.Module:
    """A copy of `model` around a native decoder: same arguments and outputs, and `generate`."""
    memo: dict[int, Any] = {id(child): None for child in (model.model, model.lm_head)}  # not copied
    found = copy.deepcopy(model, memo)
    found.model = NativeLlama(decoder, model.config)
    found.lm_head = NativeHead(decoder)
    found.train(False)
    return found


class NativeLlama(nn.Module):
    """What a model with a language head calls for the features of tokens."""

    def __init__(self, decoder: NativeDecoder, config: Any) -> None:
        """`config` is that of the model."""
        super().__init__()
        self.decoder, self.config = decoder, config
        self.nothing = nn.Parameter(torch.empty(0), requires_grad=False)  # Transformers asks parameters for the device

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Features after the last norm, and the cache, which is extended."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("specify exactly one of input_ids or inputs_embeds")
        asked = [name for name in ("output_attentions", "output_hidden_states") if kwargs.get(name)]
        if asked:
            raise ValueError(f"a native decoder does not keep what is inside: leave out {', '.join(asked)}")
        x_BTD = self.decoder.embed(input_ids) if inputs_embeds is None else inputs_embeds  # type: ignore[arg-type]
        cache = past_key_values
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        pairs = _pairs(cache)
        past = 0 if pairs is None else pairs[0][0].shape[2]
        padding_B = None if attention_mask is None else _padding(attention_mask, past + x_BTD.shape[1])
        features, _, pairs = self.decoder(x_BTD, pairs, position_BT=position_ids, padding_B=padding_B, scored=0)
        if cache is not None:
            _store(cache, pairs)
        return BaseModelOutputWithPast(last_hidden_state=features, past_key_values=cache)


class NativeHead(nn.Module):
    """The head of a native decoder, whose weights it reads."""

    def __init__(self, decoder: NativeDecoder) -> None:
        """Holds no tensor of its own."""
        super().__init__()
        self._decoder = [decoder]  # in a list: its tensors belong to the module that has it as a child

    def forward(self, x: Tensor) -> Tensor:
        """The scores of tokens."""
        return self._decoder[0].score(x)


def _has_only(module: nn.Module, names: set[str]) -> bool:
    found = {name for name, child in module.named_children() if not isinstance(child, nn.Identity)}
    return found == names


def _block(block: Any) -> BlockParts:
    attention: Any = getattr(block, "self_attn", None)
    mlp: Any = getattr(block, "mlp", None)
    if not _has_only(block, OF_BLOCK) or not _has_only(attention, OF_ATTENTION) or not _has_only(mlp, OF_MLP):
        raise ValueError(f"{type(block).__name__} is not of the Llama kind: only its feed-forward layer is native")
    activation = of_module(mlp.act_fn)
    if activation is None:
        raise ValueError(f"its activation {type(mlp.act_fn).__name__} is not known")
    qkv = (attention.q_proj, attention.k_proj, attention.v_proj)
    return BlockParts(
        block.input_layernorm, qkv, attention.o_proj, block.post_attention_layernorm, mlp.gate_proj, mlp.up_proj,
        mlp.down_proj, activation,
    )  # fmt: skip


def _window(config: Any) -> int | None:
    return getattr(config, "sliding_window", None)


def _pairs(cache: Any) -> Pairs | None:
    """Keys and values of the layers; None if nothing is cached yet."""
    if cache is None:
        return None
    if not isinstance(cache, DynamicCache) or any(type(layer) is not DynamicLayer for layer in cache.layers):
        raise ValueError(
            f"a native decoder extends a DynamicCache, received {type(cache).__name__}: leave cache_implementation out"
        )
    if not cache.get_seq_length():
        return None
    layers: list[Any] = cache.layers
    return [(layer.keys, layer.values) for layer in layers]


def _store(cache: Any, pairs: Pairs) -> None:
    while len(cache.layers) < len(pairs):
        cache.layers.append(DynamicLayer())  # type: ignore[no-untyped-call]
    for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values


def _padding(mask_BS: Tensor, positions: int) -> Tensor:
    """How many positions at the start of each sequence are padding."""
    if mask_BS.ndim != 2 or mask_BS.shape[1] != positions:
        raise ValueError(
            f"a native decoder reads a mask [sequences, {positions}] of all positions, cached ones included, received "
            f"{tuple(mask_BS.shape)}"
        )
    seen_BS = mask_BS != 0
    padding_B = (~seen_BS).sum(1)
    if not torch.equal(seen_BS, torch.arange(positions) >= padding_B[:, None]):
        raise ValueError("a native decoder reads padding at the start only: set padding_side='left' in the tokenizer")
    return padding_B
