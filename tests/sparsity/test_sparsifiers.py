"""What all sparsifiers share: choice of layers, saving, resuming, refused arguments."""

from __future__ import annotations

import copy
import typing
from pathlib import Path

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.masks import connections, pattern_of
from dynamicgate.sparsity import Sparsifier
from tests.sparsity.steps import train


def test_layers_are_chosen_by_name_and_printed() -> None:
    model = dg.nn.GatedMLP((6, 8, 8, 3), dg.GateConfig(block=2))
    text = str(dg.RigL(model, 0.25))
    assert "layers.0  [8, 6]  unstructured  density 0.2500" in text
    assert "layers.2  dense: the output layer" in text
    assert "layers.1.gate.net  dense: a gate network" in text
    named = dg.RigL(model, {"layers.*": 0.5, "*.gate.net": 0.3}, exclude=["layers.0"])
    assert [layer.name for layer in named.layers] == ["layers.1", "layers.1.gate.net", "layers.2", "layers.2.gate.net"]
    assert named.left_out == {"layers.0": "excluded"}
    with pytest.raises(ValueError, match=r"no Linear layer is called 'fc1'; the layers are layers\.0"):
        dg.RigL(model, 0.5, include=["fc1"])
    with pytest.raises(ValueError, match="no layer is left"):
        dg.RigL(model, 0.5, exclude=["*"])


def test_masks_and_their_pattern_are_saved_with_the_model(tmp_path: Path) -> None:
    model = dg.nn.GatedMLP((20, 32, 3))
    dg.RigL(model, 0.25, pattern="16x1")
    dg.save(model, tmp_path / "model.safetensors")
    back = dg.load(tmp_path / "model.safetensors")
    first, loaded = model.layers[0], back.layers[0]  # type: ignore[index,union-attr]
    assert pattern_of(loaded) == "16x1"  # type: ignore[arg-type]
    assert torch.equal(connections(first), connections(loaded))  # type: ignore[arg-type]
    assert torch.equal(first.weight, loaded.weight)  # type: ignore[union-attr]


def test_a_sparsifier_continues_from_its_state(tmp_path: Path) -> None:
    def setup() -> tuple[dg.nn.GatedMLP, dg.RigL, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = dg.nn.GatedMLP((12, 24, 3), dg.GateConfig(block=4))
        sparsifier = dg.RigL(model, 0.3, every=7, gradient_steps=4)
        return model, sparsifier, torch.optim.AdamW(model.parameters(), lr=0.01)

    model, sparsifier, optimizer = setup()
    train(model, sparsifier, optimizer, 12, 1000)
    copied, second, other = setup()
    copied.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # torch would share the moments
    second.load_state_dict(sparsifier.state_dict())
    for m, r, o in ((model, sparsifier, optimizer), (copied, second, other)):
        train(m, r, o, 12, 1000)
    assert sparsifier.updates == second.updates == 3
    assert torch.equal(sparsifier.layers[0].mask, second.layers[0].mask)
    assert torch.equal(sparsifier.layers[0].explored, second.layers[0].explored)
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), copied.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every is a number of optimizer steps"),
        ({"until": 0.0}, "until is a fraction of training"),
        ({"fraction": 0.0}, "a fraction of the connections"),
        ({"gradient_steps": 101}, "expected 1 <= gradient_steps <= every = 100, received 101"),
        ({"initial_density": 1.5}, "initial_density is a fraction of the connections"),
        ({"density": 0.001}, "too few connections"),
        ({"distribution": "kernel"}, "distribution must be uniform or erk"),
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dg.RigL(dg.nn.GatedMLP((6, 8, 3)), **{"density": 0.5, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [dg.RigL, dg.sparsity.SET, dg.sparsity.Static, dg.sparsity.Magnitude])
def test_type_hints_of_constructors_resolve_at_run_time(kind: type[Sparsifier]) -> None:
    hints = typing.get_type_hints(kind.__init__)
    assert hints["model"] is nn.Module
    assert "layers" in hints
