"""The pretrained models, tiny random ones of the same kind, and what their feed-forward layers cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, LlamaConfig, PretrainedConfig

from dynamicgate.gating.attach import select_sites
from dynamicgate.gating.sites import Site
from dynamicgate.linears import in_features, out_features

TINY: dict[str, Any] = {
    "vocab_size": 256, "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
}  # fmt: skip


def language_model(folder: Path | None) -> nn.Module:
    """The causal language model of a folder in float32, in evaluation mode; None: a tiny random Llama."""
    ids: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    tiny = LlamaConfig(**TINY, **ids, num_key_value_heads=2, tie_word_embeddings=True)
    return _model(AutoModelForCausalLM, folder, tiny)


def sentence_encoder(folder: Path | None) -> nn.Module:
    """The encoder of a folder in float32, in evaluation mode; None: a tiny random BERT."""
    return _model(AutoModel, folder, BertConfig(**TINY, max_position_embeddings=128), add_pooling_layer=False)


def _model(kind: Any, folder: Path | None, tiny: PretrainedConfig, **options: Any) -> nn.Module:
    if folder is not None:
        return kind.from_pretrained(folder, dtype=torch.float32, **options).eval()
    torch.manual_seed(0)
    return kind.from_config(tiny, **options).eval()


def ffn_sites(model: nn.Module) -> list[Site]:
    """Its feed-forward layers."""
    return select_sites(model, "mlp")


def linear(model: nn.Module, name: str) -> nn.Linear:
    """A layer of this name whose units can be counted, moved and removed."""
    found = model.get_submodule(name)
    if not isinstance(found, nn.Linear):
        raise TypeError(f"{name} is a {type(found).__name__}, expected a Linear layer")
    return found


def layer_macs(model: nn.Module, site: Site) -> dict[str, int]:
    """MACs of a token in each linear layer of a feed-forward layer, by name."""
    layers = {name: model.get_submodule(name) for name in (*site.producers, site.consumer)}
    return {name: in_features(layer) * out_features(layer) for name, layer in layers.items()}


def ffn_macs(model: nn.Module, sites: Sequence[Site]) -> int:
    """MACs of a token in all feed-forward layers."""
    return sum(sum(layer_macs(model, site).values()) for site in sites)
