"""`compile` of a model with gates on channels: right outputs, and no claim that convolutions became faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.gpu.find import find_ffns
from tests.gating.conv_nets import LeNet, ResNet, plain_net

DENSE = "closed channels are computed and multiplied by zero, so that fewer MACs are counted and no time is saved"


def gated(model: nn.Module, **config: Any) -> nn.Module:
    dg.gate_(model, dg.GateConfig(**config))
    with torch.no_grad():
        for gate in dg.named_gates(model).values():
            for parameter in gate.net.parameters():
                parameter.add_(torch.randn_like(parameter))
    return model.eval()


@pytest.mark.parametrize("config", [{"block": 2}, {"kind": "static"}, {"kind": "router", "block": 2}])
def test_convolutions_run_dense_in_torch_and_the_plan_says_so(config: dict[str, Any]) -> None:
    model, x = gated(plain_net(), **config), torch.randn(40, 3, 11, 7)
    compiled = dg.compile(model, x, batches=(1, 8), seconds=0.2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert f"convolutions run dense in torch with the gates of '3', '9' as masks: {DENSE}" in compiled.plan.notes
    assert not compiled.plan.chains
    assert compiled.plan.verification is not None


def test_linear_layers_behind_gated_convolutions_still_become_a_chain() -> None:
    torch.manual_seed(1)
    model, x = gated(LeNet(), block=4), torch.randn(40, 1, 16, 16)
    dg.ungate_(model, "fc1")
    compiled = dg.compile(model, x, batches=(1, 8), seconds=0.2)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-5, atol=1e-5)
    assert [layer.name for layer in compiled.plan.chains[0][0].layers] == ["fc1", "fc2"]


def test_a_plan_with_gated_convolutions_is_saved(tmp_path: Any) -> None:
    model, x = gated(ResNet(), block=2), torch.randn(40, 3, 9, 9)
    compiled = dg.compile(model, x, batches=(1, 8), seconds=0.2)
    compiled.save(tmp_path / "plan.safetensors")
    again = CompiledModel.load(tmp_path / "plan.safetensors", into=dg.gate_(ResNet(), dg.GateConfig(block=2)))
    assert torch.equal(again(x), compiled(x))


def test_on_a_gpu_the_gate_stays_in_torch_for_the_same_reason() -> None:
    model = gated(LeNet(), block=4)
    modules, reasons = find_ffns(model, dg.named_gates(model))
    assert DENSE in reasons["conv2"]
    assert DENSE in reasons["fc1"]
    assert [ffn.names for module in modules for ffn in module.ffns] in ([("fc1", "fc2")], [])
