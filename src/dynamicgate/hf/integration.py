"""What the core asks about Hugging Face models; see `dynamicgate.gating.integrations`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager

from torch import nn
from transformers import PreTrainedModel

from dynamicgate.gating.integrations import Tokens
from dynamicgate.hf import token_watch
from dynamicgate.hf.saving import keep_in_config


def structure_changed(model: nn.Module) -> None:
    """Gates or masks came or went: `save_pretrained` must write them, or write them no more."""
    for found in _outermost(model):
        keep_in_config(found)


def watch_tokens(model: nn.Module, gates: Mapping[str, nn.Module]) -> AbstractContextManager[Tokens]:
    """Knows the tokens of the forward passes that run while it is open."""
    return token_watch.watch_tokens(model, gates)


def _outermost(module: nn.Module) -> Iterator[PreTrainedModel]:
    """The models that have a `save_pretrained` of their own and are not a part of another one."""
    if isinstance(module, PreTrainedModel):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)
