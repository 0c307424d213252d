"""One run: repeatable, found again in its folder, and trained by a teacher where that is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynamicgate.budget import Budget
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods import MODELS, Settings, run_one
from dynamicgate.lab.methods.train_one import missed_budget


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


@pytest.mark.parametrize(("executed", "notes"), [(0.205, 0), (0.258, 1), (0.15, 1)])
def test_a_run_says_that_it_misses_its_budget(executed: float, notes: int) -> None:
    found = missed_budget(Settings(budget=0.2), Budget(target=0.2), executed)
    assert len(found) == notes
    assert all(f"0.2 of the dense MACs was asked for, {executed:.3f} is executed" in text for text in found)
    assert missed_budget(Settings(budget=0.2), None, executed) == [], "sparse layers have what they have"
