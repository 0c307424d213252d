"""What `hf.measure` says about a language model, against counts made by hand."""

from __future__ import annotations

import math

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

import dynamicgate as dg
from dynamicgate import hf
from tests.hf.tiny import VOCAB, gated, padded, tiny_bert, tiny_llama, tokens

HIDDEN, WIDTH, LAYERS, HEADS, BLOCK = 32, 64, 2, 4, 8


def words() -> PreTrainedTokenizerFast:
    """Token n is the word "é" * n: two bytes a letter."""
    vocabulary = {"é" * n if n else "[PAD]": n for n in range(VOCAB)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, "[PAD]")), pad_token="[PAD]")


def test_loss_perplexity_and_bits_per_byte() -> None:
    model, ids = gated(tiny_llama()), tokens(3, 9)
    data = [padded(ids[:2], 4), padded(ids[2:], 0)]
    found = hf.measure(model, data, text_bytes=500)
    with torch.no_grad():
        scores = model.eval()(input_ids=ids).logits
    nats = F.cross_entropy(scores[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
    assert found.tokens == 27
    assert found.quality["loss"] == pytest.approx(float(nats) / 24, rel=1e-5)
    assert found.quality["perplexity"] == pytest.approx(math.exp(float(nats) / 24), rel=1e-5)
    assert found.quality["bits_per_byte"] == pytest.approx(float(nats) / math.log(2) / 500, rel=1e-5)


def test_a_tokenizer_counts_the_bytes_of_the_predicted_text() -> None:
    model, ids = gated(tiny_llama()), tokens(2, 5)
    found = hf.measure(model, padded(ids, 3), tokenizer=words())
    letters = int(ids[:, 1:].sum())
    spaces = 2 * 3  # between the four words of each row
    nats = found.quality["loss"] * 8
    assert found.quality["bits_per_byte"] == pytest.approx(nats / math.log(2) / (2 * letters + spaces), rel=1e-9)


def test_macs_per_token_are_the_sum_of_their_parts() -> None:
    model, length = gated(tiny_llama()), 10
    ids = tokens(4, length)
    found = hf.measure(model, ids)
    with torch.no_grad(), dg.usage(model.eval()) as used:
        model(input_ids=ids)
    attention = HIDDEN * HIDDEN * 2 + HIDDEN * HIDDEN // 2 * 2  # q, o and half as many keys and values
    mixing = 2 * HIDDEN * (length + 1) / 2  # the mean token looks at half of the keys, and at itself
    head, gate = HIDDEN * VOCAB, HIDDEN * WIDTH // BLOCK
    ffn = 3 * HIDDEN * WIDTH
    opened = [float(decision.open.mean()) for decision in used.values()]
    assert found.macs["dense"] == pytest.approx(LAYERS * (attention + mixing + ffn) + head, rel=1e-12)
    assert found.macs["head"] == head
    assert found.macs["gates"] == LAYERS * gate
    assert found.macs["embedding"] == 0.0
    assert found.macs["other"] == pytest.approx(LAYERS * mixing, rel=1e-12)
    executed = LAYERS * (attention + gate) + found.macs["other"] + head + sum(ffn * rate for rate in opened)
    assert found.macs["executed"] == pytest.approx(executed, rel=1e-6)
    assert found.relative == pytest.approx(executed / found.macs["dense"], rel=1e-6)
    body = found.macs["dense"] - head
    assert found.macs["relative_without_head"] == pytest.approx((executed - head) / body, rel=1e-6)
    assert [row["open"] for row in found.layers] == pytest.approx(opened)
    assert found.params["embedding"] == found.params["head"] == HIDDEN * VOCAB
    assert hf.measure(gated(tiny_llama(tied=True)), ids).params["head"] == 0


def test_the_union_of_open_blocks_is_counted_by_hand() -> None:
    model, ids = gated(tiny_llama()).eval(), tokens(2, 19)
    found = hf.measure(model, padded(ids, 5))
    with torch.no_grad(), dg.usage(model) as used:
        model(input_ids=ids)
    for row in found.layers:
        blocks = used[row["name"]].open
        chunks = [blocks[s, start : start + 8].amax(0).mean() for s in range(2) for start in (0, 8)]
        assert row["open_in_chunk"] == pytest.approx(float(torch.stack(chunks).mean()))
        assert row["open_in_batch"] == pytest.approx(float(blocks.flatten(0, 1).amax(0).mean()))
        assert row["open"] <= row["open_in_chunk"] <= row["open_in_batch"]
        assert row["batch_tokens"] == 38
    assert hf.measure(model, ids[:, :5]).layers[0]["open_in_chunk"] is None


def test_padding_changes_nothing() -> None:
    model, ids = gated(tiny_llama()), tokens(3, 9)
    alone, with_pads = hf.measure(model, ids), hf.measure(model, padded(ids, 7))
    assert with_pads.tokens == alone.tokens == 27
    assert with_pads.quality["loss"] == pytest.approx(alone.quality["loss"], rel=1e-5)
    assert [row["open"] for row in with_pads.layers] == [row["open"] for row in alone.layers]
    assert with_pads.macs == pytest.approx(alone.macs, rel=1e-9)


def test_an_encoder_is_measured_on_its_labels() -> None:
    model, ids = gated(tiny_bert()), tokens(2, 9)
    labels = torch.full_like(ids, -100)
    labels[:, 3] = ids[:, 3]
    found = hf.measure(model, {"input_ids": ids, "labels": labels})
    with torch.no_grad():
        expected = F.cross_entropy(model.eval()(input_ids=ids).logits[:, 3], ids[:, 3])
    assert found.quality["loss"] == pytest.approx(float(expected), rel=1e-5)
    assert hf.measure(model, ids).quality == {}
    assert found.relative < 1.0


def test_the_measurement_is_printed_and_written() -> None:
    found = hf.measure(gated(tiny_llama()), tokens(2, 9))
    text = str(found)
    for word in ("perplexity", "per token", "without the head", "of which gates", "in 8", "model.layers.1.mlp"):
        assert word in text
    assert found.to_dict()["macs"]["relative"] == found.relative


def test_bad_data_is_named() -> None:
    model = gated(tiny_llama())
    with pytest.raises(ValueError, match="dataset is empty"):
        hf.measure(model, [])
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
        hf.measure(model, {"pixel_values": torch.zeros(2, 3)})


def test_the_measure_of_the_core_points_here() -> None:
    with pytest.raises(TypeError, match=r"dynamicgate\.hf\.measure"):
        dg.measure(gated(tiny_llama()), tokens(2, 5))


def test_a_model_card_says_how_to_load_the_model_and_what_it_costs() -> None:
    model = gated(tiny_llama())
    found = hf.measure(model, tokens(2, 9))
    card = hf.card(model, found, name="me/tiny-gated", dataset="nothing")
    assert 'dynamicgate.hf.load("me/tiny-gated")' in card.text
    assert f"{found.relative:.1%}" in card.text
    assert "dynamicgate" in card.data.tags
    assert card.data.library_name == "transformers"
    metrics = {result.metric_type: result.metric_value for result in card.data.eval_results}
    assert metrics["executed_macs_relative"] == pytest.approx(found.relative)
    with pytest.raises(ValueError, match="no gates"):
        hf.card(tiny_llama())
    assert hf.card(model).data.eval_results is None


def test_a_batch_of_padding_alone_adds_nothing() -> None:
    model, ids = gated(tiny_llama()), tokens(2, 5)
    empty = padded(ids, 2)
    empty["attention_mask"] = torch.zeros_like(empty["attention_mask"])
    assert hf.measure(model, [{"input_ids": ids}, empty]).macs == pytest.approx(hf.measure(model, ids).macs)
    assert hf.measure(model, [{"input_ids": ids}, empty]).tokens == 10


class LastLogits(nn.Module):
    """A user's own module around a Hugging Face model."""

    def __init__(self) -> None:
        super().__init__()
        self.model = gated(tiny_llama())

    def forward(self, **inputs: Tensor) -> Tensor:
        logits: Tensor = self.model(**inputs).logits
        return logits[:, -1]


def test_the_measure_of_the_core_refuses_padding() -> None:
    ids = tokens(3, 6)
    same = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    per_token = hf.measure(LastLogits().model, ids).macs["executed"]
    assert dg.measure(LastLogits(), same).macs["executed"] == pytest.approx(6 * per_token, rel=1e-6)
    with pytest.raises(ValueError, match=r"has padding.*dynamicgate\.hf\.measure"):
        dg.measure(LastLogits(), padded(ids, 3))
