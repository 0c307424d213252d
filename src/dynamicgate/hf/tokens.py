"""Padding never counts: which positions of a forward pass hold tokens, from what the parts of a model are called with.

A model of models (an encoder and a decoder, a language model with a vision tower) has several masks. A layer belongs to
the innermost `PreTrainedModel` around it, and the mask that this one is called with is the right one. A decoder without
a mask is padded where its labels end, or else its tokens: later positions are hidden from all others. Packed batches
have no mask: everything counts.

Shapes in names: B sequences, T positions, K positions with those of a cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dynamicgate.hf.labels import IGNORED
from dynamicgate.hf.visible_keys import allowed, cached_length

FIRST, LAST = ("bos_token_id", "decoder_start_token_id", "cls_token_id"), ("eos_token_id", "sep_token_id")
READ, WRITTEN = ("input_ids", "inputs_embeds"), ("decoder_input_ids", "decoder_inputs_embeds", "labels")


class Call(NamedTuple):
    """What one part of a model is called with."""

    shape: tuple[int, int] | None
    """Sequences and positions; None where there are none, as for images."""
    samples: int
    counted_BT: Tensor | None
    """Which positions hold tokens; None: all."""
    encoded: Tensor | None = None
    """What an encoder wrote, for a decoder that reads it."""
    encoder_mask: Tensor | None = None
    encoder_is_cached: bool = False

    @property
    def tokens(self) -> Tensor | int:
        """How many tokens there are."""
        if self.shape is None:
            return 0
        return self.shape[0] * self.shape[1] if self.counted_BT is None else self.counted_BT.sum()

    @property
    def encoder_tokens(self) -> Tensor | int:
        """How many tokens of the encoder keys and values are computed for."""
        if self.encoded is None or self.encoder_is_cached:
            return 0
        if self.encoder_mask is None or self.encoder_mask.ndim != 2:
            return self.encoded.shape[:-1].numel()
        return self.encoder_mask.bool().sum()


def parameters_of(module: nn.Module) -> list[str]:
    """The names of what a module is called with, in order."""
    return list(inspect.signature(type(module).forward).parameters)[1:]


def read_call(
    part: PreTrainedModel, given: Mapping[str, Any], from_labels: Tensor | None, *, writes: bool
) -> Call:  # fmt: skip
    """Understand one call. writes: whether the part is an encoder and a decoder, so that its own layers read what the
    decoder writes. from_labels: which positions of the decoder have a label to come, if the whole model was
    called with labels."""
    found = next((given[n] for n in (WRITTEN if writes else READ) if _is_batch(given.get(n))), None)
    samples = next((len(value) for value in given.values() if isinstance(value, Tensor) and value.ndim), 0)
    if found is None:
        return Call(None, samples, None)
    shape = found.shape[0], found.shape[1]
    prefix = "decoder_" if writes else ""
    mask, ids = given.get(f"{prefix}attention_mask"), given.get(f"{prefix}input_ids")
    counted = counted_positions(mask, shape, given)
    encoded = given.get("encoder_hidden_states")
    decodes = writes or isinstance(encoded, Tensor)
    if decodes and from_labels is not None and from_labels.shape == shape:
        counted = from_labels if counted is None else counted & from_labels  # a mask that the whole model has made
    if counted is None and mask is None and isinstance(ids, Tensor) and ids.ndim == 2:
        counted = _from_ids(part, ids, given, decodes=decodes)
    keep = given.get("logits_to_keep")
    if isinstance(keep, int) and 0 < keep < shape[1]:  # the output layer, which is all this part has of its own
        counted, shape = None if counted is None else counted[:, -keep:], (shape[0], keep)
    if not isinstance(encoded, Tensor):
        return Call(shape, samples, counted)
    updated = getattr(given.get("past_key_values"), "is_updated", {})
    return Call(shape, samples, counted, encoded, given.get("encoder_attention_mask"), bool(updated.get(0)))


def labelled(labels_BT: Tensor) -> Tensor:
    """The positions of a decoder up to the last label: nothing that is used depends on later ones."""
    return (labels_BT != IGNORED).flip(1).cummax(1).values.flip(1)


def counted_positions(mask: Any, shape: tuple[int, int], given: Mapping[str, Any]) -> Tensor | None:
    """Which positions of a batch of this shape hold tokens according to its mask; None: it says nothing on that."""
    positions = shape[1]
    if isinstance(mask, Mapping):  # one for each kind of layer; a window hides no token from itself
        mask = next((m for m in (mask.get("full_attention"), *mask.values()) if isinstance(m, Tensor)), None)
    if not isinstance(mask, Tensor) or mask.ndim not in (2, 4):
        return None
    start = 0 if mask.shape[-1] == positions else cached_length(given)
    fits = start + positions <= mask.shape[-1]
    if mask.ndim == 2:
        held_BT = mask[:, start : start + positions] if fits else mask[:, -positions:]
        return held_BT.bool().expand(shape)
    seen_BTK = allowed(mask)[:, 0]
    if not fits:  # a cache that holds a window: padding in front sees nothing
        return seen_BTK.any(-1).expand(shape)
    # a token sees itself, padding does not
    return seen_BTK[..., start : start + positions].diagonal(dim1=-2, dim2=-1).expand(shape)


def _from_ids(part: PreTrainedModel, ids_BT: Tensor, given: Mapping[str, Any], *, decodes: bool) -> Tensor | None:
    """The tokens of a decoder that was given no mask; an error for any other batch that is padded and does not say
    where. Packed batches say where sequences begin."""
    pad = getattr(part.config, "pad_token_id", None)
    if ids_BT.shape[1] < 2 or pad is None:
        return None
    first, last = _ids_of(part, FIRST), _ids_of(part, LAST)
    if decodes and pad not in last:
        held_BT = (ids_BT != pad).flip(1).cummax(1).values.flip(1)
        return torch.cat([torch.ones_like(held_BT[:, :1]), held_BT[:, 1:]], 1)
    inner = any(isinstance(module, PreTrainedModel) for module in part.modules() if module is not part)
    packed = given.get("position_ids") is not None
    if torch.compiler.is_compiling() or decodes or packed or pad in first | last or inner:  # which is asked itself
        return None
    if bool((ids_BT[:, [0, -1]] == pad).any()):
        raise ValueError(
            f"this batch has padding (token {pad}) and no attention_mask, so that padded positions would be counted as "
            "tokens: pass attention_mask= (decoder_attention_mask= for a decoder), 1 for tokens and 0 for padding"
        )
    return None


def _ids_of(part: PreTrainedModel, names: tuple[str, ...]) -> set[int]:
    """The ids that a config has under these names; one of them may be a list."""
    values = (getattr(part.config, name, None) for name in names)
    lists = [value if isinstance(value, list | tuple) else [value] for value in values if value is not None]
    return {each for ids in lists for each in ids}


def _is_batch(value: Any) -> bool:
    """Token ids or labels [B, T], or embeddings [B, T, D]."""
    return isinstance(value, Tensor) and value.ndim in (2, 3)
