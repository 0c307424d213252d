"""Tiny random Hugging Face models, the sites of their feed-forward layers, and batches of tokens.

`FAMILIES` is the one list that tests of this folder run over.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

import dynamicgate as dg
from dynamicgate.gating import Site

VOCAB, PAD = 64, 0


def tiny_llama(*, seed: int = 0, tied: bool = False, layers: int = 2) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=VOCAB, max_position_embeddings=64, tie_word_embeddings=tied, pad_token_id=PAD, bos_token_id=1,
        eos_token_id=2,
    )  # fmt: skip
    return LlamaForCausalLM(config)


def tiny_bert(*, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = BertConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCAB,
        max_position_embeddings=64, pad_token_id=PAD, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return BertForMaskedLM(config)


def mlp_sites(model: nn.Module) -> list[Site]:
    """The sites of the feed-forward layers of a Llama or a BERT."""
    found = []
    for name, module in model.named_modules():
        if name.endswith("mlp.down_proj"):
            gate, up = (name.replace("down_proj", other) for other in ("gate_proj", "up_proj"))
            found.append(Site(consumer=name, producers=(gate, up), source=gate, width=module.in_features))
        elif name.endswith("output.dense") and "attention" not in name:
            producer = name.replace("output.dense", "intermediate.dense")
            found.append(Site(consumer=name, producers=(producer,), source=producer, width=module.in_features))
    return found


FAMILIES: dict[str, Callable[[], PreTrainedModel]] = {"llama": tiny_llama, "bert": tiny_bert}


def gated(model: PreTrainedModel, *, spread: float = 1.0, **config: object) -> PreTrainedModel:
    """The model with gates whose biases are `spread` apart, so that some blocks are open and some closed."""
    dg.gate_(model, dg.GateConfig(**{"block": 8, "open": 0.6, **config}), where=mlp_sites(model))  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(7)
    for gate in dg.named_gates(model).values():
        with torch.no_grad():
            gate.bias.add_(spread * torch.randn(gate.bias.shape, generator=generator).to(gate.bias))
    return model


def tokens(rows: int, length: int, *, seed: int = 0) -> Tensor:
    return torch.randint(3, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def padded(ids: Tensor, more: int, *, left: bool = False) -> dict[str, Tensor]:
    """The same rows with `more` positions of padding, and their attention mask."""
    pads, ones = torch.full((len(ids), more), PAD), torch.ones_like(ids)
    parts = [(pads, ids), (torch.zeros_like(pads), ones)] if left else [(ids, pads), (ones, torch.zeros_like(pads))]
    input_ids, mask = (torch.cat(part, 1) for part in parts)
    return {"input_ids": input_ids, "attention_mask": mask}
