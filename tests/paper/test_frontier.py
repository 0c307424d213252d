"""The frontier: its tables, its accounts, and a few of its runs from end to end."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data import Splits, check_arrays
from dynamicgate.paper import load_tables
from dynamicgate.paper.recipe import load_module

FOLDER = Path(__file__).resolve().parents[2] / "experiments" / "frontier"
SETS, CELLS, TRAIN = (load_module(FOLDER, name) for name in ("sets", "cells", "train"))


def cell(*accuracy: float, cost: float = 0.1) -> object:
    return CELLS.Cell(accuracy, [cost] * len(accuracy), [])


def test_tuning_cannot_see_the_test_rows() -> None:
    parts = [check_arrays(torch.full((4, 2), float(part)), torch.arange(4) % 2) for part in range(3)]
    splits = Splits("clouds", *parts, 2, 0.0, 1.0)
    for table in load_tables(FOLDER):
        if table.name.endswith("-tuning") and table.recipes[0].data == "digits":
            change = table.recipes[0].change
            assert change is not None
            assert change(splits).test is splits.valid


def test_every_method_stands_at_every_budget_with_the_same_tuning() -> None:
    tables = {table.name: table.recipes[0] for table in load_tables(FOLDER)}
    for name in SETS.SETS:
        models = tables[name].models
        assert {f"{m} {b:g}" for m in SETS.AT_A_BUDGET for b in SETS.BUDGETS} | {"dense", "dropout"} == set(models)
        trials = [model.split(" ")[0] for model in tables[f"{name}-tuning"].models]
        assert {method: trials.count(method) for method in ("rigl", "gate+rigl", "pruned", "small")} == {
            "rigl": 4, "gate+rigl": 4, "pruned": 4, "small": 2,
        }  # fmt: skip


def test_a_tenth_of_a_point_is_a_tie_and_a_dearer_control_is_no_rival() -> None:
    cells = {
        ("gate+rigl", 0.1): cell(0.9, 0.9), ("rigl", 0.1): cell(0.9009, 0.9009), ("small", 0.1): cell(0.95, 0.83),
        ("pruned", 0.1): cell(0.95, 0.95), ("switch", 0.1): cell(0.99, 0.99, cost=0.2),
    }  # fmt: skip
    assert {duel.control: duel.outcome for duel in CELLS.duels("clouds", cells)} == {
        "rigl": "tied", "small": "won", "pruned": "lost",
    }  # fmt: skip


def test_the_area_is_the_mean_over_the_logarithm_of_the_budget() -> None:
    flat = {("rigl", budget): cell(0.9, 0.8) for budget in SETS.BUDGETS}
    found = CELLS.area(flat, "rigl")
    assert found.mean == pytest.approx(85.0)
    assert CELLS.area(dict(list(flat.items())[1:]), "rigl") is None


def test_a_gate_without_a_choice_loses_nothing_with_its_mean_mask() -> None:
    torch.manual_seed(0)
    part = check_arrays(torch.randn(60, 6), torch.arange(60) % 3)
    splits = Splits("clouds", part, part, part, 3, 0.0, 1.0)
    model = dg.GatedMLP((6, 8, 3), dg.GateConfig(block=2))
    (gate,) = dg.gates_of(model).values()
    with torch.no_grad():
        gate.net.weight.zero_()  # type: ignore[operator]
        gate.bias.copy_(torch.tensor([3.0, -3.0, 3.0, -3.0]))
    before = dg.measure(model, part).quality["accuracy"]
    assert TRAIN.accuracy_of_mean_mask(model, splits) == before


def test_a_few_runs_from_end_to_end(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["frontier", "digits", "--quick", "--jobs", "1", "--only", "small", "gate+rigl", "--budgets", "0.02", "0.1"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(FOLDER), run_name="__main__")
    assert left.value.code == 0
    assert "gate+rigl against the controls" in capsys.readouterr().out
    where = FOLDER.parents[1] / "runs" / "frontier-quick"
    found = sorted((where / "results" / "digits" / "ours").glob("gate+rigl*.json"))
    runs = [json.loads(path.read_text())["runs"][0] for path in found]
    assert any("unreachable" in run for run in runs), "2 % of digits do not pay for a gate"
    assert any("accuracy_of_mean_mask" in run for run in runs)
    assert "digits, 64-128-10" in (where / "docs" / "why-it-works.md").read_text(encoding="utf-8")
