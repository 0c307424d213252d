"""Values that mean nothing, and networks that no machine holds, are refused before anything is made."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import pytest

from dynamicgate.lab.datasets.digits import load_digits
from dynamicgate.lab.datasets.limits import memory_bytes
from dynamicgate.lab.methods.hyperparameters import Settings
from dynamicgate.lab.methods.ranges import RANGES

WRONG = {
    "open_rate": 5.0, "weight_decay": -5.0, "gate_lr_scale": 0.0, "gate_fraction": 5.0, "always_open": 7.0,
    "distill_weight": 2.0, "initial_density": 5.0, "prune_until": 5.0, "widen": -1.0,
    "stage_distill": -1.0, "first_stage_weight": -1.0, "clip": 0.0, "anneal": 1.0,
}  # fmt: skip


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("nan", [True, False])
def test_a_value_outside_of_its_range_is_refused_by_name(name: str, nan: bool) -> None:
    splits = load_digits(Path(), 0)
    value = float("nan") if nan else WRONG[name]
    with pytest.raises(ValueError, match=rf"{name} must be .*, received {value}"):
        replace(Settings(), **{name: value}).resolved(splits)


def test_ranges_are_those_of_settings_and_hold_their_defaults() -> None:
    defaults = {field.name: field.default for field in fields(Settings)}
    assert all(defaults[name] is None or defaults[name] in allowed for name, allowed in RANGES.items())
    assert WRONG.keys() == RANGES.keys()


@pytest.mark.parametrize("hidden", [(10**9,), (10**6, 10**6)])
@pytest.mark.parametrize("model", ["dense", "sparsify", "gate+rigl"])
def test_a_network_that_does_not_fit_into_memory_is_refused_before_it_is_made(
    model: str, hidden: tuple[int, ...]
) -> None:
    with pytest.raises(ValueError, match=r"a network of 64 x 1,000.* needs .* GB to be trained.*: choose smaller"):
        Settings(model=model, hidden=hidden).resolved(load_digits(Path(), 0))


def test_the_limit_of_a_container_counts(tmp_path: Path) -> None:
    (tmp_path / "max").write_text("1000000\n")
    (tmp_path / "none").write_text("max\n")
    assert memory_bytes([tmp_path / "max"]) == 1_000_000
    assert memory_bytes([tmp_path / "none"]) == memory_bytes([])
