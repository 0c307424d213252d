"""The JSON description of every known layer, and the layer built again from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import dynamicgate as dg
from dynamicgate.activations import QuickGELU, SquaredReLU
from dynamicgate.io.architecture import LAYERS, build, describe
from dynamicgate.nn import FFN, GatedMLP, Normalize, Switch, SwitchMLP

PATH = Path("model.safetensors")
EXAMPLES: dict[str, Callable[[], nn.Module]] = {
    "GatedMLP": lambda: GatedMLP((6, 5, 3), activation="tanh", dropout=0.2, normalize=Normalize(torch.ones(6), 2.0)),
    "FFN": lambda: FFN(6, 5, 4, activation="silu", value=True, bias=False, gate_gradient="sparse", kernels="never"),
    "Switch": lambda: dg.ungate_(Switch(6, 3, 2, activation="gelu", fallback="bias", kernels="always")),
    "SwitchMLP": lambda: dg.ungate_(SwitchMLP(6, 5, 4, 3, 2, fallback="bias", normalize=Normalize(0.1, 0.3))),
    "Normalize": lambda: Normalize(torch.ones(6), torch.full((6,), 2.0)),
    "Sequential": lambda: nn.Sequential(nn.Linear(6, 4), nn.Sequential(nn.ReLU())),
    "Linear": lambda: nn.Linear(6, 4, bias=False),
    "LayerNorm": lambda: nn.LayerNorm([3, 6], eps=0.1, bias=False),
    "BatchNorm1d": lambda: nn.BatchNorm1d(6, eps=0.2, momentum=None, affine=False, track_running_stats=False),
    "Conv2d": lambda: nn.Conv2d(
        6, 4, (3, 2), (1, 2), (2, 0), dilation=2, groups=2, bias=False, padding_mode="circular"
    ),
    "BatchNorm2d": lambda: nn.BatchNorm2d(6, eps=0.2, momentum=None),
    "MaxPool2d": lambda: nn.MaxPool2d((3, 2), 2, 1, ceil_mode=True),
    "AvgPool2d": lambda: nn.AvgPool2d(2, (1, 2), count_include_pad=False, divisor_override=3),
    "AdaptiveAvgPool2d": lambda: nn.AdaptiveAvgPool2d((None, 2)),
    "Dropout2d": lambda: nn.Dropout2d(0.3),
    "Dropout": lambda: nn.Dropout(0.3),
    "Flatten": lambda: nn.Flatten(0, 1),
    "GELU": lambda: nn.GELU("tanh"),
    "ELU": lambda: nn.ELU(2.0),
    "Softplus": lambda: nn.Softplus(3.0, 5.0),
    "ReLU": nn.ReLU,
    "SiLU": nn.SiLU,
    "Tanh": nn.Tanh,
    "Sigmoid": nn.Sigmoid,
    "Mish": nn.Mish,
    "Identity": nn.Identity,
    "QuickGELU": QuickGELU,
    "SquaredReLU": SquaredReLU,
}


def test_there_is_an_example_of_every_known_layer() -> None:
    assert EXAMPLES.keys() == LAYERS.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
def test_a_layer_is_built_again_from_its_json_description(kind: str) -> None:
    module = EXAMPLES[kind]()
    description = json.loads(json.dumps(describe(module)))
    back = build(description, PATH)
    assert description["kind"] == kind
    assert type(back) is type(module)
    assert json.loads(json.dumps(describe(back))) == description
    shapes = {name: tensor.shape for name, tensor in module.state_dict().items()}
    assert {name: tensor.shape for name, tensor in back.state_dict().items()} == shapes
    if kind != "Normalize":  # it prints its constants, which are tensors and not in the description
        back.load_state_dict(module.state_dict())
        assert repr(back) == repr(module)


def test_gates_and_masks_are_no_part_of_the_architecture() -> None:
    plain, gated = GatedMLP((6, 5, 3)), GatedMLP((6, 5, 3), dg.GateConfig())
    assert describe(gated) == describe(plain)
    assert dg.named_gates(build(describe(Switch(6, 3, 2)), PATH)) == {}


class Doubled(nn.Linear):
    """A subclass that computes something else."""


class GELU(nn.Module):
    """An unrelated class with a known name."""


@pytest.mark.parametrize("cls", [Doubled, GELU])
def test_a_subclass_or_a_namesake_of_a_known_layer_is_not_mistaken_for_it(cls: type[nn.Module]) -> None:
    description = describe(cls(6, 3) if cls is Doubled else cls())
    assert description == {"kind": "custom", "class": f"{cls.__module__}.{cls.__name__}"}
    with pytest.raises(ValueError, match=rf"your own class \S+{cls.__name__}: pass an instance with load\(path, into="):
        build(description, PATH)


def test_a_layer_of_a_newer_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {"format": 1, "kind": "model", "architecture": {"kind": "New"}, "gates": [], "masks": {}, "notes": {}}
    save_file({}, path, {"dynamicgate": json.dumps(header)})
    with pytest.raises(ValueError, match="a layer of kind 'New', which this version does not know: upgrade"):
        dg.load(path)
