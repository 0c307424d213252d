"""Gates on the channels of a convolutional model of Transformers: found, counted, and saved with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import ResNetConfig, ResNetForImageClassification

import dynamicgate as dg
from dynamicgate import hf

SITES = [f"resnet.encoder.stages.{stage}.layers.0.layer.1.convolution" for stage in (0, 1)]
IMAGES = torch.randn(4, 3, 24, 16)


def resnet() -> ResNetForImageClassification:
    """Two basic blocks: 8 channels at 6 x 4 positions, and 16 at 3 x 2."""
    config = ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3)
    return ResNetForImageClassification(config).eval()


def test_closed_channels_are_counted() -> None:
    model = dg.gate_(resnet(), dg.GateConfig(kind="static", block=4))
    assert [*dg.named_gates(model)] == SITES
    batches = [{"pixel_values": IMAGES, "labels": torch.tensor([0, 1, 2, 0])}]
    before = hf.measure(model, batches).macs
    assert before["executed"] == before["dense"] == dg.count_macs(resnet(), {"pixel_values": IMAGES}).dense
    with torch.no_grad():
        dg.named_gates(model)[SITES[0]].bias[0] = -9.0
        dg.named_gates(model)[SITES[1]].bias[:3] = -9.0
    saved = 24 * 9 * 4 * (8 + 8) + 6 * 9 * 12 * (8 + 16)
    assert hf.measure(model, batches).macs["executed"] == pytest.approx(before["executed"] - saved)


def test_they_are_saved_with_the_model(tmp_path: Path) -> None:
    model = dg.gate_(resnet(), dg.GateConfig(block=4))
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            gate.bias.normal_()
        want = model(IMAGES).logits
        model.save_pretrained(tmp_path)
        found = ResNetForImageClassification.from_pretrained(tmp_path).eval()
        assert torch.equal(found(IMAGES).logits, want)
    assert [gate.site for gate in dg.named_gates(found).values()] == dg.find_sites(model)
