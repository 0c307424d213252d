"""What a decoder or an encoder is made of, as its model names the parts, and how a decoder takes the positions before.

A model of your own runs as a whole if it has a method `decoder_parts` that returns a `DecoderParts`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dynamicgate.gating import integrations
from dynamicgate.gating.gate import Gate
from dynamicgate.linears import is_linear

CAPTURING = "transformers.utils.output_capturing"  # its hooks do nothing unless a call asks for what layers give
CacheKind = Literal["list", "past_key_values"]


@dataclass(frozen=True)
class BlockParts:
    """One block: x + mix(attention(norm1(x))), then x + down(activation(up(norm2(x))) [* value(norm2(x))]). In an
    encoder the norms stand behind these sums.

    qkv: one projection to queries, keys and values, or three, one after the other.
    norm_q, norm_k: of each head of queries and of keys, before they are turned.
    act: the module of the activation, where there is one; a gate on its factors, in a gated linear unit, may sit on it.
    """

    norm1: nn.Module
    qkv: tuple[nn.Linear, ...]
    mix: nn.Linear
    norm2: nn.Module
    up: nn.Linear
    value: nn.Linear | None
    down: nn.Linear
    activation: str
    norm_q: nn.Module | None = None
    norm_k: nn.Module | None = None
    act: nn.Module | None = None

    @property
    def of_factors(self) -> Gate | None:
        """The gate on the factors that the value projection is multiplied by, if it acts as its hook says."""
        gate = None if self.act is None else getattr(self.act, "gate", None)
        if self.act is None or self.value is None or not isinstance(gate, Gate) or not gate.site.factors:
            return None
        return gate if list(self.act._forward_hooks.values()) == [gate.cut_after] else None


@dataclass(frozen=True)
class DecoderParts:
    """A decoder with norms before its layers; see `ops.decoder.Decoder` for the numbers.

    positions: learned ones, [positions, features], added to the features of tokens; rotation then has speeds of zero.
    into: makes a model out of the native decoder, that is called as this one is; None makes one with
    ``forward(ids, cache=None)``.
    """

    embed: nn.Embedding
    blocks: tuple[BlockParts, ...]
    norm: nn.Module
    head: nn.Linear
    heads: int
    key_heads: int
    speed: Tensor
    score_scale: float
    rotation_scale: float = 1.0
    positions: Tensor | None = None
    into: Callable[[Any], nn.Module] | None = None


@dataclass(frozen=True)
class EncoderParts:
    """The layers of an encoder as BERT has them: layer norms behind the sums, positions that see each other.

    into: makes a model with the native layers in it, that is called as this one is.
    """

    blocks: tuple[BlockParts, ...]
    heads: int
    score_scale: float
    into: Callable[[Any], nn.Module]


def parts_of(model: nn.Module) -> DecoderParts:
    """The parts of a decoder; ValueError with the reason for any other model."""
    found = whole_parts_of(model)
    if isinstance(found, EncoderParts):
        raise ValueError("it is an encoder")
    return found


def whole_parts_of(model: nn.Module) -> DecoderParts | EncoderParts:
    """The parts of a decoder or an encoder; ValueError with the reason for any other model."""
    own = getattr(model, "decoder_parts", None)
    if own is not None and inspect.ismethod(own):
        found = own()
        assert isinstance(found, DecoderParts)
        _refuse_hooks(model, found)
        return found
    library = integrations.module_for(model)
    if library is None:
        raise ValueError("only decoders that say what they are made of run natively as a whole")
    found = library.whole_parts(model)
    assert isinstance(found, DecoderParts | EncoderParts)
    _refuse_hooks(model, found)
    return found


def cache_kind(model: nn.Module) -> CacheKind | None:
    """How a model takes the positions before: ``model(ids, cache=[])``, which is extended, or Hugging Face's way."""
    parameters = inspect.signature(model.forward).parameters
    if "cache" in parameters:
        return "list"
    decoder = not getattr(getattr(model, "config", None), "is_encoder_decoder", False)
    return "past_key_values" if "past_key_values" in parameters and decoder and hasattr(model, "generate") else None


def most_positions(model: nn.Module) -> int | None:
    """How many positions a decoder was made for; None where nothing says so."""
    config = getattr(model, "config", None)
    found = getattr(config, "max_position_embeddings", None)
    return found if isinstance(found, int) else None


def rotate(x_BHTE: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turn pairs of features by the angles of their position."""
    cos, sin = (part.to(x_BHTE.dtype) for part in turn)
    a, b = x_BHTE.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


def _refuse_hooks(model: nn.Module, parts: DecoderParts | EncoderParts) -> None:
    """A hook must see its module run; those of gates are replaced together with their layers, which are looked at, and
    with their activations, whose gates the parts name."""
    named = [block.act for block in parts.blocks if block.of_factors is not None]
    for name, module in model.named_modules():
        after = [] if any(module is act for act in named) else [*module._forward_hooks.values()]
        hooks = (*after, *module._forward_pre_hooks.values())
        if is_linear(module) or all(getattr(hook, "__module__", "") == CAPTURING for hook in hooks):
            continue
        raise ValueError(f"{name or 'the model'} has a hook, which would not run")
