"""Hugging Face decoders around a native decoder on the CPU: the same arguments, outputs and `generate`.

Shapes in names: B sequences, T new positions, S positions, D features.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

from dynamicgate.hf.decoder_kinds import Found, find_decoder
from dynamicgate.hf.names import refuse_arguments
from dynamicgate.inference.decoder_parts import DecoderParts
from dynamicgate.inference.language.native import NativeDecoder, Pairs

HARMLESS = ("return_dict", "cache_position", "num_items_in_batch")  # the last is for losses


def decoder_parts(model: nn.Module) -> DecoderParts:
    """The parts of a model with a language head; ValueError if it is of no kind that the kernels know."""
    found = find_decoder(model)
    assert isinstance(model, PreTrainedModel)
    return replace(found.parts, into=lambda decoder: with_decoder(model, found, decoder))


def with_decoder(model: PreTrainedModel, found: Found, decoder: NativeDecoder) -> nn.Module:
    """A copy of `model` around a native decoder: same arguments and outputs, and `generate`."""
    above, _, last = found.place.rpartition(".")
    inner = model.get_submodule(found.place)
    memo: dict[int, Any] = {id(child): None for child in (inner, model.lm_head)}  # not copied
    made = copy.deepcopy(model, memo)
    setattr(made.get_submodule(above), last, NativeBody(decoder, model.config, found.counts_padding))
    made.lm_head = NativeHead(decoder)
    made.train(False)
    return made


class NativeBody(nn.Module):
    """What a model with a language head calls for the features of tokens."""

    def __init__(self, decoder: NativeDecoder, config: Any, counts_padding: bool) -> None:
        """`config` is that of the model; counts_padding: see `Found`."""
        super().__init__()
        self.decoder, self.config, self.counts_padding = decoder, config, counts_padding
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
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Features after the last norm, and the cache, which is extended."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("specify exactly one of input_ids or inputs_embeds")
        refuse_arguments(self.config, kwargs, HARMLESS)
        x_BTD = self.decoder.embed(input_ids) if inputs_embeds is None else inputs_embeds  # type: ignore[arg-type]
        cache = past_key_values
        if cache is None and (self.config.use_cache if use_cache is None else use_cache):
            cache = DynamicCache(config=self.config)
        pairs = _pairs(cache)
        past = 0 if pairs is None else pairs[0][0].shape[2]
        positions = past + x_BTD.shape[1]
        padding_B = None if attention_mask is None else _padding(attention_mask, positions)
        if attention_mask is None and position_ids is not None and bool((position_ids.diff() != 1).any()):
            raise ValueError("a native decoder reads one text in each row: unpack sequences that share a row")
        if position_ids is None and padding_B is not None and self.counts_padding:
            position_ids = (torch.arange(past, positions) - padding_B[:, None]).clamp(min=0)
        features, _, pairs = self.decoder(x_BTD, pairs, position_BT=position_ids, padding_B=padding_B, scored=0)
        if cache is not None:
            _store(cache, pairs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=features, past_key_values=cache)


class NativeHead(nn.Module):
    """The head of a native decoder, whose weights it reads."""

    def __init__(self, decoder: NativeDecoder) -> None:
        """Holds no tensor of its own."""
        super().__init__()
        self._decoder = [decoder]  # in a list: its tensors belong to the module that has it as a child

    def forward(self, x: Tensor) -> Tensor:
        """The scores of tokens."""
        return self._decoder[0].score(x)


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
    return [(layer.keys, layer.values) for layer in layers if layer.is_initialized]


def _store(cache: Any, pairs: Pairs) -> None:
    while len(cache.layers) < len(pairs):
        cache.layers.append(DynamicLayer())  # type: ignore[no-untyped-call]
    for layer, (keys, values) in zip(cache.layers, pairs, strict=True):
        if not layer.is_initialized:
            layer.lazy_initialization(keys, values)
        layer.keys, layer.values = keys, values


def _padding(mask_BS: Tensor, positions: int) -> Tensor:
    """How many positions at the start of each sequence are padding."""
    if not isinstance(mask_BS, Tensor) or mask_BS.ndim != 2 or mask_BS.shape[1] != positions:
        received = tuple(mask_BS.shape) if isinstance(mask_BS, Tensor) else type(mask_BS).__name__
        raise ValueError(
            f"a native decoder reads a mask [sequences, {positions}] of all positions, cached ones included, received "
            f"{received}"
        )
    seen_BS = mask_BS != 0
    padding_B = (~seen_BS).sum(1)
    if not torch.equal(seen_BS, torch.arange(positions) >= padding_B[:, None]):
        raise ValueError("a native decoder reads padding at the start only: set padding_side='left' in the tokenizer")
    return padding_B
