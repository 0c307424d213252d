"""Encoders with decoders, and models that read no tokens: what is counted, and per what."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    BertConfig,
    BertForSequenceClassification,
    BertLMHeadModel,
    BertModel,
    CLIPConfig,
    CLIPModel,
    EncoderDecoderModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

import dynamicgate as dg
from dynamicgate import hf
from dynamicgate.hf.activity import observe
from tests.hf.models import inputs, tiny
from tests.hf.tiny import PAD, VOCAB, padded, tiny_bert, tokens

WIDTH, FFN, BLOCK = 32, 48, 8
READ, WRITTEN = (6, 3), (4, 2)


def t5() -> PreTrainedModel:
    config = T5Config(
        d_model=WIDTH, d_kv=8, d_ff=FFN, num_layers=1, num_heads=4, vocab_size=VOCAB, pad_token_id=PAD, eos_token_id=1,
        decoder_start_token_id=PAD,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def bart() -> PreTrainedModel:
    config = BartConfig(
        d_model=WIDTH, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=FFN, decoder_ffn_dim=FFN, vocab_size=VOCAB, max_position_embeddings=32, pad_token_id=PAD,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2,
    )  # fmt: skip
    return BartForConditionalGeneration(config)


def build(name: str, where: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = dg.GateConfig(open=0.6, block=8) if where == "mlp" else dg.GateConfig(open=0.6)
    model = dg.gate_({"t5": t5, "bart": bart}[name](), config, where=where)
    for gate in dg.named_gates(model).values():
        torch.nn.init.uniform_(gate.bias, -1.0, 1.0)
    return model.eval()


def joined(lengths: tuple[int, ...], more: int, fill: int, *, seed: int) -> tuple[Tensor, Tensor]:
    """Sequences of these lengths in one batch, and their mask."""
    longest = max(lengths) + more
    ids, mask = torch.full((len(lengths), longest), fill), torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, :length], mask[row, :length] = tokens(1, length, seed=seed + row)[0], 1
    return ids, mask


def batch(more: int, says: str) -> dict[str, Tensor]:
    ids, mask = joined(READ, more, PAD, seed=0)
    labels, written = joined(WRITTEN, more, -100, seed=9)
    found = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    return {**found, "decoder_attention_mask": written} if says == "mask" else found


def alone() -> list[dict[str, Tensor]]:
    """The same sequences without any padding."""
    pairs = enumerate(zip(READ, WRITTEN, strict=True))
    return [{"input_ids": tokens(1, r, seed=i), "labels": tokens(1, w, seed=9 + i)} for i, (r, w) in pairs]


def by_hand(model: PreTrainedModel) -> float:
    """Dense MACs of `alone`."""
    total = 0.0
    for read, written in zip(READ, WRITTEN, strict=True):
        total += read * (4 * WIDTH**2 + 2 * WIDTH * FFN) + 2 * WIDTH * read * read
        total += written * (4 * WIDTH**2 + 2 * WIDTH * FFN) + 2 * WIDTH * written * (written + 1) / 2
        total += (2 * written + 2 * read) * WIDTH**2 + 2 * WIDTH * written * read  # cross-attention
        total += written * WIDTH * VOCAB
    return total


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("where", ["mlp", "heads"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_tokens_of_both_sides_count_and_padding_of_neither(name: str, where: str, attention: str) -> None:
    model = build(name, where)
    model.set_attn_implementation(attention)
    expected = hf.measure(model, alone())
    assert expected.counts == {"encoder": sum(READ), "decoder": sum(WRITTEN)}
    assert expected.tokens == sum(READ) + sum(WRITTEN)
    assert expected.macs["dense"] * expected.tokens == pytest.approx(by_hand(model), rel=1e-12)
    assert expected.relative < 1.0
    for more in (0, 3):
        for says in ("labels", "mask"):
            found = hf.measure(model, batch(more, says))
            assert found.counts == expected.counts
            assert found.macs == pytest.approx(expected.macs, rel=1e-6)
            assert [row["open"] for row in found.layers] == pytest.approx([row["open"] for row in expected.layers])
    text = str(expected)
    assert "per token of encoder and decoder" in text
    assert f"{'encoder tokens':<26}9" in text


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_a_decoder_without_mask_and_labels_ends_with_its_last_token(name: str) -> None:
    model = build(name, "mlp")
    ids, mask = joined(READ, 0, PAD, seed=0)
    written, _ = joined(WRITTEN, 2, PAD, seed=9)
    written = torch.cat([torch.full((2, 1), model.config.decoder_start_token_id), written], 1)
    with torch.no_grad(), dg.usage(model) as used:
        model(input_ids=ids, attention_mask=mask, decoder_input_ids=written)
    rows = {len(used[site].open.flatten(0, -2)) for site in used if "decoder" in site}
    assert rows == {sum(WRITTEN) + len(WRITTEN)}
    assert used.work.tokens[""] == sum(WRITTEN) + len(WRITTEN)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_generation_computes_keys_of_the_encoder_once(name: str) -> None:
    model = build(name, "mlp")
    ids, mask = joined(READ, 2, PAD, seed=0)
    with dg.usage(model) as used:
        options = {"max_new_tokens": 4, "min_new_tokens": 4, "do_sample": False, "num_beams": 1}
        model.generate(input_ids=ids, attention_mask=mask, **options)
    work = used.work
    decoder = "decoder" if name == "t5" else "model.decoder"
    assert (work.tokens[f"{decoder}@encoder"], work.tokens[decoder]) == (sum(READ), 2 * 4)
    cross = [int(keys.sum()) for layer, keys in work.keys.items() if "encoder_attn" in layer or "EncDec" in layer]
    assert cross == [4 * sum(READ)]


def test_whisper_reads_positions_of_sound_and_writes_tokens() -> None:
    model, given = tiny("whisper"), inputs("whisper")
    found = hf.measure(model, given)
    assert found.counts == {"encoder": 2 * 10, "decoder": 2 * 6}
    encoder = 10 * 2 * (4 * 32**2 + 2 * 32 * 64) + 2 * 2 * 32 * 100
    decoder = 6 * 2 * (4 * 32**2 + 2 * 32 * 64) + 2 * 2 * 32 * 21
    cross = 2 * (6 * 2 + 10 * 2) * 32**2 + 2 * 2 * 32 * 60
    convolutions = 20 * 3 * 4 * 32 + 10 * 3 * 32 * 32
    expected = encoder + decoder + cross + convolutions + 6 * 32 * 64
    assert found.macs["dense"] * found.tokens == pytest.approx(2 * expected, rel=1e-12)
    shorter = {**given, "decoder_input_ids": given["decoder_input_ids"][:, :3]}
    assert hf.measure(model, [given, shorter]).counts == {"encoder": 40, "decoder": 18}


def test_an_image_classifier_is_measured_per_image() -> None:
    torch.manual_seed(0)
    model = dg.gate_(tiny("vit"), dg.GateConfig(block=8, open=0.6), where="mlp")
    images, labels = torch.randn(7, 3, 8, 8), torch.arange(7) % 3
    found = hf.measure(model, {"pixel_values": images, "labels": labels}, batch=4)
    with torch.no_grad(), dg.usage(model) as used:
        scores = model(pixel_values=images).logits
    patches, layers = 4 + 1, 2
    attention = 4 * 32**2 * patches + 2 * 32 * patches**2
    dense = layers * (attention + 2 * 32 * 64 * patches) + 4 * 3 * 16 * 32 + 32 * 3
    opened = [float(used[site].open.double().mean()) for site in used]
    executed = dense - 2 * 32 * 64 * patches * (layers - sum(opened)) + layers * patches * 32 * 64 // 8
    assert found.counts == {"images": 7}
    assert found.macs["dense"] == pytest.approx(dense, rel=1e-12)
    assert found.macs["executed"] == pytest.approx(executed, rel=1e-6)
    assert found.quality["accuracy"] == pytest.approx(float((scores.argmax(1) == labels).double().mean()))
    assert hf.measure(model, (images, labels)).macs == pytest.approx(found.macs, rel=1e-6)
    assert "per image" in str(found)
    with pytest.raises(TypeError, match=r"dynamicgate\.hf\.measure"):
        dg.measure(model, (images, labels))


def test_a_text_classifier_has_an_accuracy_and_no_perplexity() -> None:
    config = tiny_bert().config
    config.num_labels = 3
    model = dg.gate_(BertForSequenceClassification(config), dg.GateConfig(block=8), where="mlp")
    given = {**padded(tokens(4, 6), 3), "labels": torch.tensor([0, 1, 2, 0])}
    found = hf.measure(model, given)
    assert {*found.quality} == {"loss", "accuracy"}
    assert found.counts == {"tokens": 24}
    without = hf.measure(model, {"input_ids": given["input_ids"][:, :6], "labels": given["labels"]})
    assert found.macs == pytest.approx(without.macs, rel=1e-6)


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_padding_of_neither_side_is_looked_at_for_a_conversion(name: str) -> None:
    model = build(name, "mlp")
    sites = [gate.site_at(site) for site, gate in dg.named_gates(model).items()]
    rows: dict[str, list[int]] = {}
    observe(
        model, sites, [batch(3, "labels")], lambda site, x, h: rows.setdefault(site.name, []).extend([len(x), len(h)])
    )
    expected = [[sum(READ)] * 2, [sum(WRITTEN)] * 2]
    assert list(rows.values()) == expected


@pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")
def test_two_models_in_one_count_as_an_encoder_and_a_decoder() -> None:
    """The whole model makes a mask for its decoder that knows padding, and not where labels end."""
    sizes = {"hidden_size": WIDTH, "intermediate_size": FFN, "num_hidden_layers": 1, "num_attention_heads": 4}
    configs = [BertConfig(**sizes, vocab_size=VOCAB, is_decoder=d, add_cross_attention=d) for d in (False, True)]
    encoder, decoder = BertModel(configs[0], add_pooling_layer=False), BertLMHeadModel(configs[1])
    model = EncoderDecoderModel(encoder=encoder, decoder=decoder).eval()
    model.config.decoder_start_token_id, model.config.pad_token_id = 1, PAD
    transform = sum(WRITTEN) * WIDTH**2  # BERT has one more layer in front of the output layer
    for more in (0, 3):
        found = hf.measure(model, batch(more, "labels"))
        assert found.counts == {"encoder": sum(READ), "decoder": sum(WRITTEN)}
        assert found.macs["dense"] * found.tokens == pytest.approx(by_hand(model) + transform, rel=1e-12)


def test_images_and_texts_in_one_model() -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    special = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": 2}
    text = {**sizes, **special, "vocab_size": VOCAB, "max_position_embeddings": 32}
    vision = {**sizes, "image_size": 8, "patch_size": 4}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=16)).eval()
    images = torch.randn(2, 3, 8, 8)
    alone, with_pads = (hf.measure(model, {**padded(tokens(2, 6), n), "pixel_values": images}) for n in (0, 4))
    assert alone.counts == with_pads.counts == {"tokens": 12}
    layer = 4 * 32**2 + 2 * 32 * 48
    expected = 6 * layer + 2 * 32 * 21 + 5 * layer + 2 * 32 * 25 + 4 * 48 * 32 + 2 * 32 * 16
    assert alone.macs["dense"] * 6 == pytest.approx(expected + 2 * 16, rel=1e-12)  # each text with both images
    linear = [found.macs["dense"] - found.macs["other"] for found in (alone, with_pads)]
    assert linear[0] == pytest.approx(linear[1], rel=1e-12)
