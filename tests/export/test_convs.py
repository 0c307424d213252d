"""Models with gates on channels in other runtimes: gates stay masks, for any number of images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dynamicgate as dg
from tests.gating.conv_nets import plain_net
from tests.gating.test_channels import images, randomised

WHY = "closed units are multiplied by zero, not skipped: the gate of '3' closes channels of convolutions"


@pytest.mark.parametrize("config", [{"block": 2}, {"kind": "router", "block": 2}])
def test_a_program_of_gated_convolutions_takes_any_number_of_images(config: dict[str, Any]) -> None:
    model, x = randomised(dg.gate_(plain_net(), dg.GateConfig(**config))).eval(), images(16)
    program = dg.export.to_program(model, x)
    with torch.no_grad():
        torch.testing.assert_close(program.module()(x[:3]), model(x[:3]), rtol=1e-5, atol=1e-6)


def test_onnx_has_the_gates_as_masks_and_says_so(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model, x = randomised(dg.gate_(plain_net(), dg.GateConfig(block=2))).eval(), images(16)
    exported = dg.export.to_onnx(model, x, tmp_path / "model.onnx")
    assert any(WHY in note for note in exported.notes)
    assert exported.verification is not None
    assert exported.verification.error < 1e-5
