"""A compiled feed-forward layer as a module: inputs it refuses, copies, files."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.inference.gpu.models import GATES, Compile, feed_forwards, model_with


def test_no_rows_and_wrong_inputs(compile_as_on_gpu: Compile) -> None:
    model = model_with(GATES["linear"])
    compiled = compile_as_on_gpu(model, torch.randn(64, 20))
    assert compiled(torch.randn(0, 20)).shape == (0, 5)
    (layer,) = feed_forwards(compiled)
    for wrong in (torch.randn(3, 19), torch.randn(3, 20, dtype=torch.float64)):
        with pytest.raises(ValueError, match=r"expected torch.float32 on cpu with 20 features"):
            layer(wrong)


def test_the_model_is_left_alone_and_a_copy_shares_no_memory(compile_as_on_gpu: Compile) -> None:
    model, x = model_with(GATES["linear"]), torch.randn(64, 20)
    before = copy.deepcopy(model.state_dict())
    compiled = compile_as_on_gpu(model, x)
    y = compiled(x)
    copied = copy.deepcopy(compiled)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    for parameter in [*model.parameters(), *compiled.buffers(), *compiled.parameters()]:
        parameter.data.zero_()
    assert torch.equal(copied(x), y)


def test_a_plan_on_a_gpu_cannot_be_saved_and_says_what_to_do(compile_as_on_gpu: Compile, tmp_path: Path) -> None:
    compiled = compile_as_on_gpu(model_with(GATES["linear"]), torch.randn(64, 20))
    with pytest.raises(ValueError, match=r"save the model with dynamicgate.save, and compile it where it runs"):
        compiled.save(tmp_path / "compiled.safetensors")
