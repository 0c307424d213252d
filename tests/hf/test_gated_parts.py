"""Gates that were put on a part of a model are saved with the whole, and with the part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
)

import dynamicgate as dg
import dynamicgate.hf
from dynamicgate.hf.own_config import whole_models
from tests.hf.tiny import tiny_llama, tokens

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def tiny_llava() -> PreTrainedModel:
    torch.manual_seed(0)
    vision = CLIPVisionConfig(**SIZES, image_size=8, patch_size=4, projection_dim=32)
    text = LlamaConfig(**SIZES, num_key_value_heads=2, vocab_size=64, pad_token_id=0)
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=63, vision_feature_layer=-1)
    ).eval()


def gated_at(part: nn.Module) -> nn.Module:
    dg.gate_(part, dg.GateConfig(block=8), where="mlp")
    for seed, gate in enumerate(dg.named_gates(part).values()):
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            gate.bias.add_(torch.randn(gate.bias.shape, generator=generator))
    return part


def check_saved(model: PreTrainedModel, folder: Path, inputs: dict[str, Any]) -> None:
    model.save_pretrained(folder)
    back = type(model).from_pretrained(folder)
    assert list(dg.named_gates(back)) == list(dg.named_gates(model))
    mine, theirs = model.state_dict(), back.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    with torch.no_grad():
        assert torch.equal(model.eval()(**inputs)[0], back(**inputs)[0])


@pytest.mark.parametrize("part", ["", "model", "model.layers", "model.layers.1", "model.layers.1.mlp"])
def test_any_part_of_a_llama(part: str, tmp_path: Path) -> None:
    model = tiny_llama()
    gated_at(model.get_submodule(part))
    assert len(dg.named_gates(model)) == (1 if part.endswith(("1", "1.mlp")) else 2)
    check_saved(model, tmp_path / "whole", {"input_ids": tokens(2, 6)})
    check_saved(model.model, tmp_path / "base", {"input_ids": tokens(2, 6)})


@pytest.mark.parametrize("part", ["model.language_model", "model.vision_tower", "model.language_model.layers", ""])
def test_any_part_of_a_llava_and_its_language_model_alone(part: str, tmp_path: Path) -> None:
    model = tiny_llava()
    gated_at(model.get_submodule(part))
    ids = tokens(1, 8) % 60
    ids[:, 1:5] = 63
    check_saved(model, tmp_path / "whole", {"input_ids": ids, "pixel_values": torch.randn(1, 3, 8, 8)})
    language: Any = model.model.language_model
    check_saved(language, tmp_path / "part", {"input_ids": tokens(2, 6)})
    assert len(dg.named_gates(AutoModel.from_pretrained(tmp_path / "part"))) == len(dg.named_gates(language))


def test_a_loaded_whole_whose_part_was_gated_can_be_changed_and_saved_again(tmp_path: Path) -> None:
    model = tiny_llava()
    gated_at(model.model.language_model)
    model.save_pretrained(tmp_path / "a")
    back = LlavaForConditionalGeneration.from_pretrained(tmp_path / "a")
    dg.ungate_(back.model.language_model)
    back.save_pretrained(tmp_path / "b")
    text = (tmp_path / "b" / "config.json").read_text()
    assert "dynamicgate" not in text
    assert "quantization_config" not in text


def test_a_part_finds_the_outermost_model_around_it_and_no_other() -> None:
    first, second = tiny_llama(), tiny_llama()
    holder = nn.ModuleList([first])
    others = {"mine": first.model.layers, "yours": second}
    assert whole_models(first.model.layers[0].mlp) == [first]
    assert whole_models(holder) == [first]
    assert whole_models(nn.ModuleList([first, second])) == [first, second]
    assert others


def test_a_base_model_that_two_heads_share_is_saved_with_both(tmp_path: Path) -> None:
    first, second = tiny_llama(), tiny_llama(seed=1)
    second.model = first.model
    gated_at(first.model.layers)
    for name, model in (("first", first), ("second", second)):
        check_saved(model, tmp_path / name, {"input_ids": tokens(2, 6)})
