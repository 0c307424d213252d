"""Models with stages in a file: the same outputs to the bit, the same masks, and an older format without stages."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate import GateConfig
from dynamicgate.gating.stages import stages_of
from tests.gating.staged import sequential, stage, the_gate

SIZES = (5, 32, 32, 3)


class Own(nn.Module):
    """A class of one's own, with a staged network inside."""

    def __init__(self) -> None:
        super().__init__()
        self.net = sequential(SIZES)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


def header(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads(file.metadata()["dynamicgate"].partition("\n")[0])


def example(kind: str, decide: Any = "margin") -> nn.Module:
    base = {"mlp": lambda: dg.nn.GatedMLP(SIZES), "own": Own}.get(kind, lambda: sequential(SIZES))()
    model = stage(base, (8, 8, 16), decide=decide)
    if kind == "sparse":
        dg.RigL(model, {"0": (0.5, 0.4, 0.3), "2": 0.4}, pattern="fan-in")
    if kind == "gates":
        dg.gate_(model, GateConfig(block=4, net="linear", open=0.55))
    if kind == "double":
        model.double()
    return model


@pytest.mark.parametrize("decide", ["margin", "head"])
@pytest.mark.parametrize("kind", ["mlp", "sequential", "own", "sparse", "gates", "double"])
def test_a_staged_model_is_the_same_after_a_file(kind: str, decide: str, tmp_path: Path) -> None:
    model, path = example(kind, decide).eval(), tmp_path / "model.safetensors"
    x = torch.randn(40, 5, dtype=next(model.parameters()).dtype)
    dg.calibrate_(model, x, macs=0.5)
    expected = model(x)
    dg.save(model, path)
    assert header(path)["format"] == 2
    again = dg.load(path, into=Own() if kind == "own" else None)
    assert torch.equal(again(x), expected)
    assert again.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    assert the_gate(again).config == the_gate(model).config
    assert the_gate(again).bounds == the_gate(model).bounds
    assert dg.measure(again, x).to_dict() == dg.measure(model, x).to_dict()
    patterns = [{n: m.mask_pattern for n, m in each.named_modules() if hasattr(m, "mask")} for each in (model, again)]
    assert patterns[0] == patterns[1] != {}
    dg.ungate_(again)
    dg.ungate_(model)
    assert again.state_dict().keys() == model.state_dict().keys()


@pytest.mark.parametrize("kind", ["sequential", "gates"])
def test_a_file_written_right_after_an_optimizer_step_computes_the_same(kind: str, tmp_path: Path) -> None:
    model = example(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    x = torch.randn(16, 5)
    model(x).square().sum().backward()
    optimizer.step()
    dg.save(model, tmp_path / "model.safetensors")
    assert torch.equal(dg.load(tmp_path / "model.safetensors")(x), model.eval()(x))


def test_a_file_fits_a_model_that_has_its_stages_already(tmp_path: Path) -> None:
    model, other = example("mlp").eval(), example("mlp")
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    dg.save(model, tmp_path / "model.safetensors")
    x = torch.randn(7, 5)
    assert torch.equal(dg.load(tmp_path / "model.safetensors", into=other)(x), model(x))
    assert len([m for m in other.modules() if type(m).__name__ == "StageGate"]) == 1


def test_a_staged_model_that_moved_is_saved_under_its_new_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Identity(), example("sequential", "head")).eval()
    x = torch.randn(30, 5)
    dg.calibrate_(model, x, macs=0.5)
    dg.save(model, tmp_path / "model.safetensors")
    again = dg.load(tmp_path / "model.safetensors", into=nn.Sequential(nn.Identity(), sequential(SIZES)))
    assert torch.equal(again(x), model(x))


@pytest.mark.parametrize("config", [None, GateConfig(block=4)])
def test_without_stages_files_are_those_that_earlier_versions_read(config: GateConfig | None, tmp_path: Path) -> None:
    dg.save(dg.nn.GatedMLP(SIZES, config), tmp_path / "model.safetensors")
    found = header(tmp_path / "model.safetensors")
    assert found["format"] == 1
    ignored = {"has_checksums"}  # earlier versions read past it
    assert found.keys() - ignored == {"format", "kind", "architecture", "gates", "masks", "notes"}
    assert stages_of(dg.load(tmp_path / "model.safetensors")) is None


def test_the_gates_of_such_a_file_have_no_settings_that_earlier_versions_do_not_know(tmp_path: Path) -> None:
    dg.save(dg.nn.GatedMLP(SIZES, GateConfig(block=4, theta=0.4)), tmp_path / "model.safetensors")
    for row in header(tmp_path / "model.safetensors")["gates"]:
        assert set(row["config"]) == {f.name for f in fields(GateConfig)} - {"stages", "decide", "contexts"}
    again = dg.load(tmp_path / "model.safetensors")
    assert all(
        (g.config.block, g.config.theta, g.config.stages) == (4, 0.4, None) for g in dg.named_gates(again).values()
    )
