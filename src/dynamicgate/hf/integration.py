"""What the core asks about Hugging Face models; see `dynamicgate.gating.integrations`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from torch import nn

from dynamicgate.gating.integrations import Tokens
from dynamicgate.hf import token_watch
from dynamicgate.hf.adapters import keep_in_adapters
from dynamicgate.hf.own_config import ancestors, give_own_config, whole_models
from dynamicgate.hf.saving import is_described, keep_in_config
from dynamicgate.inference.decoder_parts import DecoderParts, EncoderParts


def whole_parts(model: nn.Module) -> DecoderParts | EncoderParts:
    """What a decoder or an encoder is made of, where the kernels can run it as a whole."""
    from dynamicgate.hf import decoder, encoder  # outputs take a second to import, and only compiling needs them

    return encoder.encoder_parts(model) if encoder.has_encoder(model) else decoder.decoder_parts(model)


def structure_changed(model: nn.Module) -> None:
    """Gates or masks came or went: `save_pretrained` must write them, or write them no more."""
    for module in (model, *ancestors(model)):  # a model with adapters around what was gated, or inside it
        keep_in_adapters(module)
    for found in whole_models(model):
        if not is_described(found):
            give_own_config(found)
        keep_in_config(found)


def watch_tokens(model: nn.Module, gates: Mapping[str, nn.Module]) -> AbstractContextManager[Tokens]:
    """Knows the tokens of the forward passes that run while it is open."""
    return token_watch.watch_tokens(model, gates)
