"""Padding never counts: which positions of a forward pass hold tokens, from the attention masks of Hugging Face models.

A model of models (an encoder and a decoder, a language model with a vision tower) has several masks. A gate belongs to
the innermost `PreTrainedModel` around it, and the mask that this one is called with is the right one. Packed batches
have no mask: everything counts.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

MASK = "attention_mask"
IDS = ("input_ids", "decoder_input_ids")
ALSO_FIRST_OR_LAST = ("bos_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id")


class AttentionMasks:
    """The two-dimensional attention masks that the parts of a model were last called with."""

    def __init__(self, model: nn.Module, gates: Mapping[str, nn.Module]) -> None:
        """For the gates of `model`, by site name."""
        parts = {name: module for name, module in model.named_modules() if isinstance(module, PreTrainedModel)}
        around = {gate: _innermost(parts, site) for site, gate in gates.items()}
        self._part_of = {gate: part for gate, part in around.items() if part is not None}
        self.parts = list(dict.fromkeys(self._part_of.values()))
        self._parameters = {part: _parameters_of(part) for part in self.parts}
        self._now: dict[PreTrainedModel, Tensor | None] = {}

    def counted(self, gate: nn.Module) -> Tensor | None:
        """See `dynamicgate.gating.integrations.Tokens`."""
        part = self._part_of.get(gate)
        return None if part is None else self._now.get(part)

    def see(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Forward pre-hook of each part."""
        assert isinstance(part, PreTrainedModel)
        given = dict(zip(self._parameters[part], args, strict=False)) | kwargs
        mask = given.get(MASK)
        two_dimensional = isinstance(mask, Tensor) and mask.ndim == 2
        self._now[part] = mask if two_dimensional else None
        if mask is None:
            _check_not_padded(part, given)


@contextmanager
def watch_padding(model: nn.Module, gates: Mapping[str, nn.Module]) -> Iterator[AttentionMasks]:
    """The attention masks of the forward passes inside the block."""
    masks = AttentionMasks(model, gates)
    handles = [part.register_forward_pre_hook(masks.see, with_kwargs=True) for part in masks.parts]
    try:
        yield masks
    finally:
        for handle in handles:
            handle.remove()


def _innermost(parts: Mapping[str, PreTrainedModel], site: str) -> PreTrainedModel | None:
    around = [name for name in parts if not name or site == name or site.startswith(f"{name}.")]
    return parts[max(around, key=len)] if around else None


def _parameters_of(part: nn.Module) -> list[str]:
    return list(inspect.signature(type(part).forward).parameters)[1:]


def _check_not_padded(part: PreTrainedModel, given: Mapping[str, Any]) -> None:
    """An error for a batch that is padded and does not say where. Packed batches say where sequences begin."""
    ids = next((given[name] for name in IDS if isinstance(given.get(name), Tensor)), None)
    pad = getattr(part.config, "pad_token_id", None)
    if torch.compiler.is_compiling() or ids is None or ids.ndim != 2 or ids.shape[1] < 2 or pad is None:
        return
    others = {getattr(part.config, name, None) for name in ALSO_FIRST_OR_LAST}
    if pad in others or given.get("position_ids") is not None:
        return
    if bool((ids[:, [0, -1]] == pad).any()):
        raise ValueError(
            f"this batch has padding (token {pad}) and no attention_mask, so that padded positions would be counted as "
            "tokens: pass attention_mask= (decoder_attention_mask= for a decoder), 1 for tokens and 0 for padding"
        )
