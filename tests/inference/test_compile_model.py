"""`compile`: its arguments, what it refuses, and what it leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.inference.compile_model import refuse_options
from tests.inference.models import compile_quickly, gated_mlp


@pytest.fixture
def model() -> nn.Module:
    return gated_mlp(dg.GateConfig(block=16))


@pytest.mark.parametrize(
    ("example", "batches", "words"),
    [
        (torch.zeros(20), (1,), "rows of features"),
        (torch.zeros(0, 20), (1,), "at least one row, received none"),
        ([1.0], (1,), "a batch is a tensor, a mapping of tensors or a pair .*received float"),
        ({"x": torch.zeros(2, 20)}, (1,), "received dict"),
        (torch.zeros(2, 20).double(), (1,), "or float32 on the cpu, received torch.float64"),
        (torch.zeros(2, 20), (), "ascending"),
        (torch.zeros(2, 20), (16, 1), "ascending"),
        (torch.zeros(2, 20), (0, 1), "at least 1"),
    ],
)
def test_wrong_arguments_get_a_sentence(model: nn.Module, example: Any, batches: tuple[int, ...], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        dg.compile(model, example, batches=batches)


@pytest.mark.parametrize("way", ["tuple", "arrays", "loader", "batches"])
def test_the_example_may_be_given_as_any_data(model: nn.Module, way: str) -> None:
    x, y = torch.randn(40, 20), torch.arange(40) % 5
    data: dict[str, Any] = {
        "tuple": (x, y),
        "arrays": Arrays(x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=7),
        "batches": [x[:25], x[25:]],
    }
    plan = compile_quickly(model, data[way], calibration=data[way]).plan
    macs = [[layer.macs for layer in regime.layers] for regime in plan.chains[0]]
    same = compile_quickly(model, x).plan
    assert macs == [[layer.macs for layer in regime.layers] for regime in same.chains[0]]
    assert plan.verification is not None
    assert same.verification is not None
    assert plan.verification.rows == same.verification.rows


def test_calibration_data_are_read_to_the_end() -> None:
    model = gated_mlp(dg.GateConfig(net="linear", block=16), (20, 64, 5))
    with torch.no_grad():  # the second block opens only where the first feature is large
        gate = dg.named_gates(model)["layers.1"]
        gate.net.weight[1] = 0.0
        gate.net.weight[1, 0] = 1.0
        gate.net.bias[1] = -100.0
    x = torch.randn(64, 20)
    rare = x[:1].clone()
    rare[0, 0] = 200.0
    assert any("blocks never open" in note for note in compile_quickly(model, x, calibration=[x, x]).plan.notes)
    assert compile_quickly(model, x, calibration=[x, x, rare]).plan.notes == []


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"drop_never_open": True}, "received drop_never_open=True with an example on a GPU"),
        ({"memory": 1.1, "threads": 2}, "received memory=1.1, threads=2 with an example on a GPU"),
    ],
)
def test_options_of_the_cpu_are_refused_on_a_gpu(option: dict[str, Any], words: str) -> None:
    defaults: dict[str, Any] = {"drop_never_open": None, "memory": None, "threads": None, "same_bits": None}
    refuse_options(defaults, "an example on a GPU", "leave them out")
    with pytest.raises(ValueError, match=words):
        refuse_options({**defaults, **option}, "an example on a GPU", "leave them out")


def test_a_model_with_two_outputs_gets_a_sentence() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(20, 5)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(x), x

    with pytest.raises(ValueError, match="must return one tensor, received tuple"):
        dg.compile(Two(), torch.randn(8, 20))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_model_that_cannot_read_the_example_gets_a_sentence(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(20, 8), nn.ReLU(), nn.Linear(8, 5))
    with pytest.raises(ValueError, match="the model cannot read the example"):
        dg.compile(model, torch.randn(8, 19))
    with pytest.raises(ValueError, match="the model cannot read the example"):
        dg.compile(model.to(dtype), torch.randn(8, 20))


def test_the_model_that_was_compiled_is_left_as_it_was() -> None:
    model = gated_mlp(dg.GateConfig(block=16), normalize=dg.nn.Normalize(0.3, 2.0))
    model.train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(32, 20)
    compiled = compile_quickly(model, x)
    y = compiled(x)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(compiled(x), y)


def test_the_threads_of_torch_are_as_before() -> None:
    before = torch.get_num_threads()
    model = gated_mlp(dg.GateConfig(block=16))
    assert compile_quickly(model, torch.randn(8, 20), threads=1).plan.threads == 1
    assert torch.get_num_threads() == before
