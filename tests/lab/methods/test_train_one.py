"""One run: repeatable, found again in its folder, and trained by a teacher where that is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods import MODELS, Settings, run_one


def test_distillation_trains_a_teacher_for_the_run(settings: Settings, tmp_path: Path) -> None:
    splits = load_dataset(settings.data, seed=0)
    chosen = replace(settings, model="rigl", distill_weight=0.5).resolved(splits)
    run = run_one(chosen, splits, tmp_path, show=False)
    teacher = json.loads((tmp_path / "teacher" / "run.json").read_text())
    assert (teacher["model"], teacher["macs"]["relative"]) == ("dropout", 1.0)
    assert run["model"] == "rigl"
    assert run["seconds"] > teacher["seconds"]


def test_settings_without_values_cannot_build_a_model() -> None:
    with pytest.raises(ValueError, match="expected resolved settings"):
        MODELS["rigl"](Settings(model="rigl"), load_dataset("digits"))


def test_a_folder_with_a_run_of_other_settings_is_refused(settings: Settings, tmp_path: Path) -> None:
    splits = load_dataset(settings.data)
    chosen = replace(settings, model="dense").resolved(splits)
    run_one(chosen, splits, tmp_path, show=False)
    with pytest.raises(ValueError, match="holds a run with another lr, seed: "):
        run_one(replace(chosen, lr=0.5, seed=3), splits, tmp_path)


def test_a_run_made_twice_is_the_same_run(settings: Settings, tmp_path: Path) -> None:
    splits = load_dataset(settings.data)
    chosen = replace(settings, model="gate").resolved(splits)
    runs = [run_one(chosen, splits, tmp_path / name) for name in ("one", "two")]
    for run in runs:
        del run["seconds"]
    assert runs[0] == runs[1]
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
