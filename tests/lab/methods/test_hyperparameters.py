"""Hyperparameters: what identifies a run, and what None stands for."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import pytest

from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.methods import Settings, settings_hash
from dynamicgate.lab.methods.hyperparameters import Hyperparameters


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 1e-3},
        {"epochs": 4},
        {"budget": 0.4},
        {"hidden": (21,)},
        {"block": 1},
        {"seed": 1},
        {"tau": 0.9},
        {"soft_width": 0.5},
        {"clip": 1.0},
    ],
)
def test_another_setting_is_another_folder(change: dict[str, Any], settings: Settings) -> None:
    splits = load_dataset(settings.data)
    assert settings_hash(replace(settings, **change), splits) != settings_hash(settings, splits)


def test_a_new_setting_at_its_default_leaves_the_hash_of_earlier_runs_as_it_was(settings: Settings) -> None:
    @dataclass(frozen=True)
    class Later(Settings):
        momentum: float = 0.9

    splits = load_dataset(settings.data)
    asked = asdict(settings)
    assert settings_hash(Later(**asked), splits) == settings_hash(settings, splits)
    assert settings_hash(Later(**asked, momentum=0.5), splits) != settings_hash(settings, splits)


def test_other_data_under_the_same_name_is_another_folder(settings: Settings) -> None:
    splits = load_dataset(settings.data)
    changed = replace(splits, train=Arrays(splits.train.x + 1, splits.train.y))
    assert settings_hash(settings, changed) != settings_hash(settings, splits)


def test_none_is_the_only_value_that_means_default() -> None:
    splits = load_dataset("digits")
    unset = [field.name for field in fields(Hyperparameters) if field.default is None]
    assert unset == [
        "epochs", "batch", "lr", "block", "rank", "gate_fraction", "always_open", "open_rate", "clip", "patience",
        "density", "initial_density", "prune_until", "gate_density", "widen", "every", "stages", "focus",
    ]  # fmt: skip
    fused = Settings(model="gate+rigl", budget=0.5)
    assert fused.resolved(splits).initial_density == 1.0
    assert replace(fused, initial_density=0.0).resolved(splits).initial_density == 0.0
    with pytest.raises(ValueError, match=r"gate_density must be positive, received 0\.0"):
        replace(fused, gate_density=0.0).resolved(splits)
