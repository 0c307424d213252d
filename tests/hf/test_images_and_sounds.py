"""Images and sounds of several sizes and numbers: each batch costs what it costs, whatever came before it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2ForCTC,
)

import dynamicgate as dg
from dynamicgate import hf
from tests.hf.gated import spread_
from tests.hf.tiny import tokens

HIDDEN, FFN, LAYERS, PATCH, CLASSES = 32, 64, 2, 4, 3
SIZES = {"hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": LAYERS, "num_attention_heads": 4}
IMAGE, IMAGE_TOKENS = 65, 4


def noise(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def llava() -> PreTrainedModel:
    vision = CLIPVisionConfig(**SIZES, image_size=8, patch_size=PATCH)
    text = LlamaConfig(**SIZES, vocab_size=70, pad_token_id=0)
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_index=IMAGE, vision_feature_layer=-1)
    )


def vit() -> PreTrainedModel:
    return ViTForImageClassification(ViTConfig(**SIZES, image_size=16, patch_size=PATCH, num_labels=CLASSES))


def wav2vec() -> PreTrainedModel:
    convolutions = {"conv_dim": (16, 16), "conv_kernel": (5, 3), "conv_stride": (4, 2), "num_feat_extract_layers": 2}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    return Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=16, **SIZES, **convolutions, **positions, mask_time_prob=0.0))


def with_images(*images: int) -> dict[str, Tensor]:
    """Texts with so many images each."""
    ids = tokens(len(images), 10)
    for row, count in enumerate(images):
        ids[row, 1 : 1 + IMAGE_TOKENS * count] = IMAGE
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return batch | ({"pixel_values": noise(sum(images), 3, 8, 8)} if sum(images) else {})


def image(size: int) -> dict[str, Any]:
    return {"pixel_values": noise(2, 3, size, size), "interpolate_pos_encoding": True}


BATCHES: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "llava": (llava, [with_images(*images) for images in [(1, 1), (1, 0), (0, 0), (2, 1), (1, 1, 0)]]),
    "vit": (vit, [image(size) for size in (16, 32, 8)]),
    "wav2vec": (wav2vec, [{"input_values": noise(2, length)} for length in (200, 400, 800)]),
}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    model = BATCHES[name][0]().eval()
    part = model.model.language_model if name == "llava" else model
    dg.gate_(part, dg.GateConfig(block=8), where="mlp")
    return spread_(model)  # type: ignore[return-value]


def dense_macs(model: PreTrainedModel, data: list[dict[str, Any]]) -> float:
    found = hf.measure(model, data)
    return found.macs["dense"] * found.tokens


def vit_by_hand(size: int) -> int:
    """The dense MACs of one image."""
    patches = (size // PATCH) ** 2
    rows = patches + 1
    layer = (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN) * rows + 2 * rows * rows * HIDDEN
    return 3 * PATCH * PATCH * HIDDEN * patches + LAYERS * layer + HIDDEN * CLASSES


def seen(budget: dg.Budget, model: PreTrainedModel, batch: dict[str, Any]) -> float:
    budget.apply_(model, 0.0)
    with dg.usage(model) as used:
        model(**batch)
    budget.step(used, 0.0)
    assert budget.relative is not None
    return budget.relative


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_a_dataset_costs_what_its_batches_cost(name: str, backwards: bool) -> None:
    model, data = build(name), BATCHES[name][1]
    alone = sum(dense_macs(model, [batch]) for batch in data)
    assert dense_macs(model, data[::-1] if backwards else data) == pytest.approx(alone, rel=1e-9)


def test_images_of_other_sizes_are_counted_by_hand() -> None:
    data = [image(size) for size in (16, 32, 8)]
    assert dense_macs(build("vit"), data) == pytest.approx(2 * sum(map(vit_by_hand, (16, 32, 8))), rel=1e-9)


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_a_budget_sees_what_measure_says(name: str, backwards: bool) -> None:
    model, data = build(name), BATCHES[name][1]
    budget = dg.Budget(target=0.9)
    for batch in data[::-1] if backwards else data:
        budget.apply_(model, 0.0)
        expected = hf.measure(model, [batch]).relative
        assert seen(budget, model, batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", BATCHES)
def test_a_budget_after_a_checkpoint_counts_other_sizes_too(name: str) -> None:
    model, data = build(name), BATCHES[name][1]
    budget, again = dg.Budget(target=0.9), dg.Budget(target=0.9)
    seen(budget, model, data[0])
    again.load_state_dict(json.loads(json.dumps(budget.state_dict())))
    for batch in data:
        again.apply_(model, 0.0)
        expected = hf.measure(model, [batch]).relative
        assert seen(again, model, batch) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("images", [(1,) * 9 + (0,), (2, *(1,) * 8, 0)])
def test_images_need_not_belong_to_texts_one_by_one(images: tuple[int, ...]) -> None:
    """More texts than are counted of other batches."""
    model, batch = build("llava"), with_images(*images)
    alone = sum(dense_macs(model, [with_images(count)]) for count in images)
    assert dense_macs(model, [batch]) == pytest.approx(alone, rel=1e-9)
    relative = hf.measure(model, [batch]).relative
    assert seen(dg.Budget(target=0.9), model, batch) == pytest.approx(relative, rel=1e-5)
    assert dg.calibrate_(model, [batch], macs=0.9) == pytest.approx(0.9, abs=0.02)
