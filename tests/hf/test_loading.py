"""What is loaded fits the model, or is refused, as for a model without gates."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification, LlamaForCausalLM, PreTrainedModel

import dynamicgate as dg
import dynamicgate.hf
from dynamicgate.sparsity import Static
from tests.hf.tiny import gated, tiny_llama, tokens

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 64}


def classifier(labels: int) -> PreTrainedModel:
    torch.manual_seed(0)
    return BertForSequenceClassification(BertConfig(**SIZES, num_labels=labels))


@pytest.fixture
def warnings_of(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> pytest.LogCaptureFixture:
    """What Transformers logs, which it keeps from other loggers."""
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    return caplog


@pytest.mark.parametrize("with_gates", [False, True])
def test_another_number_of_labels_is_refused_or_initialised_as_without_gates(
    with_gates: bool, tmp_path: Path, warnings_of: pytest.LogCaptureFixture
) -> None:
    model = classifier(3)
    if with_gates:
        dg.gate_(model, dg.GateConfig(block=8), where="mlp")
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        BertForSequenceClassification.from_pretrained(tmp_path, num_labels=5)
    assert "classifier.weight" in warnings_of.text
    assert "classifier.bias" in warnings_of.text
    back, info = BertForSequenceClassification.from_pretrained(
        tmp_path, num_labels=5, ignore_mismatched_sizes=True, output_loading_info=True
    )
    assert {name for name, *_ in info["mismatched_keys"]} == {"classifier.weight", "classifier.bias"}
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert back.classifier.weight.shape == (5, 32)
    assert back.classifier.weight.std() > 0.005
    assert back(tokens(2, 6)).logits.shape == (2, 5)
    assert len(dg.named_gates(back)) == (2 if with_gates else 0)
    assert torch.equal(back.bert.embeddings.word_embeddings.weight, model.bert.embeddings.word_embeddings.weight)


def test_gates_and_masks_of_another_width_are_refused_or_start_anew(
    tmp_path: Path, warnings_of: pytest.LogCaptureFixture
) -> None:
    model = gated(tiny_llama(), spread=30.0, open=0.95)
    Static(model, density=0.5, include=["*down_proj"])
    model.save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        LlamaForCausalLM.from_pretrained(tmp_path, intermediate_size=96)
    for name in ("down_proj.gate.net", "down_proj.mask", "up_proj.weight"):
        assert name in warnings_of.text
    back = LlamaForCausalLM.from_pretrained(tmp_path, intermediate_size=96, ignore_mismatched_sizes=True)
    with dg.usage(back) as used:
        back(tokens(2, 6))
    for site, gate in dg.named_gates(back).items():
        assert gate.blocks == 12
        assert gate.bias.detach().std() == 0.0
        assert float(used[site].open.mean()) > 0.9, "a new gate is open"
        assert bool(back.get_submodule(site).mask.all())


def test_a_checkpoint_that_fits_is_reported_without_a_word(
    tmp_path: Path, warnings_of: pytest.LogCaptureFixture
) -> None:
    model = gated(tiny_llama())
    model.save_pretrained(tmp_path)
    _, info = LlamaForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info.values()), info
    assert "LOAD REPORT" not in warnings_of.text


def test_a_model_built_from_the_config_of_a_gated_one_is_refused_with_what_to_do(tmp_path: Path) -> None:
    model = gated(tiny_llama())
    LlamaForCausalLM(model.config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="config of a model with gates"):
        LlamaForCausalLM.from_pretrained(tmp_path)


def test_many_small_files_and_a_part_on_disk_are_loaded_as_they_were(tmp_path: Path) -> None:
    model = gated(tiny_llama(tied=True)).eval()
    model.save_pretrained(tmp_path, max_shard_size="6KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 5
    places = dict.fromkeys(["model.embed_tokens", "model.layers.1", "model.norm", "model.rotary_emb", "lm_head"], "cpu")
    options = {"device_map": {**places, "model.layers.0": "disk"}, "offload_folder": tmp_path / "offloaded"}
    for given in ({}, {"device_map": "cpu"}, options):
        back = LlamaForCausalLM.from_pretrained(tmp_path, **given)
        assert back.lm_head.weight is back.model.embed_tokens.weight
        with torch.no_grad():
            assert torch.equal(back(tokens(2, 6)).logits, model(tokens(2, 6)).logits)
    assert not list((tmp_path / "offloaded").glob("*.dat")), "nothing is written a second time"
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        LlamaForCausalLM.from_pretrained(tmp_path, vocab_size=80)
