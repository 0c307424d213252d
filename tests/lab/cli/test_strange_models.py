"""A model file from a stranger cannot choose which files a command reads, or where it writes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.lab.cli import main
from dynamicgate.lab.cli.options import PATH_OPTIONS
from dynamicgate.lab.datasets.loading import FILE_LOADERS, LOADERS


def write_model(path: Path, notes: Any) -> str:
    dg.save(nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10)), path, notes=notes)
    return str(path)


@pytest.mark.parametrize("command", ["measure", "bench"])
def test_a_path_in_the_file_is_not_read(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"data": "/etc/passwd", "seed": 0, "data_options": [["cache_dir", str(tmp_path / "evil")]]}
    model = write_model(tmp_path / "m.safetensors", {"settings": settings})
    assert main([command, model]) == 2
    assert "was trained on '/etc/passwd': if you have this file, and mean it, give it with --data" in (
        capsys.readouterr().err
    )


def test_a_cache_folder_in_the_file_is_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
    settings = {"data": str(tmp_path / "own"), "data_options": [["cache_dir", str(tmp_path / "evil")]]}
    model = write_model(tmp_path / "m.safetensors", {"settings": settings})
    assert main(["measure", model, "--data", str(tmp_path / "own")]) == 2
    capsys.readouterr()
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "settings", ["x", 5, {"data": 7}, {"data": "digits", "seed": "x"}, {"data": "digits", "data_options": [["x"]]},
                 {"data": "digits", "seed": -1}, {"data": "digits", "data_options": {"a": 1}}],
)  # fmt: skip
def test_notes_of_the_wrong_kind_are_a_sentence(
    settings: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_model(tmp_path / "m.safetensors", {"settings": settings})
    assert main(["measure", model]) == 2
    assert "m.safetensors is damaged: its notes do not say" in capsys.readouterr().err


def test_every_loader_option_that_is_a_path_is_known() -> None:
    found = {
        name
        for loader in (*LOADERS.values(), *FILE_LOADERS.values())
        for name, parameter in list(inspect.signature(loader).parameters.items())[1:]
        if "Path" in str(parameter.annotation) or "dir" in name or "path" in name
    }
    assert found == set(PATH_OPTIONS)


def test_a_model_that_answers_nan_is_said_to(tmp_path: Path) -> None:
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, float("nan"))
    with pytest.warns(UserWarning, match="the model answers NaN for 8 of 8 rows"):
        dg.measure(model, (torch.randn(8, 4), torch.zeros(8, dtype=torch.long)))


def test_a_model_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--models", "dense,dense", "--seeds", "1", "--out", str(tmp_path / "x")]) == 2
    assert "dense is asked for twice" in capsys.readouterr().err


def test_too_little_memory_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def too_much(*_: Any, **__: Any) -> None:
        raise MemoryError("Unable to allocate 8.00 GiB")

    monkeypatch.setattr("dynamicgate.io.model_file.load", too_much)
    model = write_model(tmp_path / "m.safetensors", {"settings": {"data": "digits"}})
    assert main(["measure", model]) == 2
    assert "not enough memory: Unable to allocate 8.00 GiB" in capsys.readouterr().err
