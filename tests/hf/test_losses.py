"""Which predictions are part of the loss that `hf.measure` gives, and what it gives beside it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertConfig, BertForSequenceClassification, MixtralConfig, MixtralForCausalLM

from dynamicgate import hf
from tests.hf.test_language import HEADS, HIDDEN, LAYERS, WIDTH, words
from tests.hf.tiny import VOCAB, gated, padded, tiny_bert, tiny_llama, tokens


def test_padding_on_the_left_predicts_nothing() -> None:
    model, rows = gated(tiny_llama()), [tokens(1, 6), tokens(1, 9, seed=1)]
    alone = hf.measure(model, [{"input_ids": ids} for ids in rows], tokenizer=words())
    for left in (True, False):
        parts = [padded(ids, 12 - ids.shape[1], left=left) for ids in rows]
        batch = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        batch["position_ids"] = (batch["attention_mask"].cumsum(1) - 1).clamp(min=0)
        found = hf.measure(model, [batch], tokenizer=words())
        assert found.quality == pytest.approx(alone.quality, rel=1e-5)


def test_a_mask_of_four_dimensions_says_which_tokens_have_labels() -> None:
    model, ids = gated(tiny_llama()), tokens(2, 6)
    batch = padded(ids, 3)
    causal_TT = torch.ones(9, 9, dtype=torch.bool).tril()
    seen = causal_TT & batch["attention_mask"][:, None, None].bool()
    added = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)
    expected = hf.measure(model, [batch])
    for mask in (seen, added):
        found = hf.measure(model, [{**batch, "attention_mask": mask}])
        assert found.quality == pytest.approx(expected.quality, rel=1e-5)
        assert found.tokens == expected.tokens
    shared = hf.measure(model, [{"input_ids": ids, "attention_mask": causal_TT[None, None, :6, :6]}])
    assert shared.quality == pytest.approx(hf.measure(model, ids).quality, rel=1e-5)
    assert shared.tokens == 12


@pytest.mark.parametrize("length", [1, 5])
def test_a_batch_without_labels_is_no_part_of_the_loss(length: int) -> None:
    model, ids = gated(tiny_llama()), tokens(2, 9)
    nothing = tokens(3, length)
    found = hf.measure(model, [{"input_ids": ids}, {"input_ids": nothing, "labels": torch.full_like(nothing, -100)}])
    assert found.quality == hf.measure(model, ids).quality
    assert found.tokens == 18 + 3 * length
    assert hf.measure(model, [{"input_ids": ids}, {"input_ids": tokens(3, 1)}]).quality == found.quality
    assert hf.measure(model, tokens(3, 1)).quality == {}


def test_the_loss_of_a_router_is_no_part_of_the_loss() -> None:
    torch.manual_seed(0)
    sizes = {"hidden_size": HIDDEN, "intermediate_size": WIDTH, "num_hidden_layers": LAYERS, "vocab_size": VOCAB}
    model = MixtralForCausalLM(MixtralConfig(**sizes, num_attention_heads=HEADS, num_key_value_heads=2))
    batch = {"input_ids": tokens(2, 8)}
    expected = hf.measure(model, [batch]).quality
    assert hf.measure(model, [{**batch, "output_router_logits": True}]).quality == expected
    model.config.output_router_logits = True
    assert hf.measure(model, [batch]).quality == expected


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"num_labels": 1}, torch.tensor([0.5, -1.0, 2.0])),
        ({"num_labels": 3, "problem_type": "regression"}, torch.eye(3)),
        ({"num_labels": 3, "problem_type": "multi_label_classification"}, torch.eye(3)),
    ],
)
def test_what_is_no_choice_among_classes_has_a_loss_only(options: dict[str, Any], labels: Tensor) -> None:
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(**tiny_bert().config.to_dict() | options)).eval()
    batch = {"input_ids": tokens(3, 6), "attention_mask": torch.ones(3, 6, dtype=torch.long), "labels": labels}
    with torch.no_grad():
        expected = float(model(**batch).loss)
    assert hf.measure(model, [batch], text_bytes=9).quality == {"loss": pytest.approx(expected, rel=1e-6)}
