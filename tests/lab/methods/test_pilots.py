"""`sparsify` in a comparison: what it tries, what it chooses, and what a run says about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dynamicgate.data import check_arrays
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import MODELS, Settings, pilots, run_one
from dynamicgate.lab.methods.recipes import recipes
from dynamicgate.presets.pilot import Choice

NAMES = ("small", "set", "pruned", "no gates", "units", "two stages", "three stages")


@pytest.fixture(scope="module")
def asked(settings: Settings) -> tuple[Settings, Splits]:
    splits = load_dataset(settings.data).flat()
    return replace(settings, model="sparsify", block=None).resolved(splits), splits


@pytest.fixture(scope="module")
def finished(asked: tuple[Settings, Splits], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("sparsify")
    return folder, run_one(*asked, folder, show=False)


def test_a_run_says_what_was_chosen_and_why_and_what_finding_out_took(finished: tuple[Path, dict[str, Any]]) -> None:
    _, run = finished
    choice = run["choice"]
    assert run["model"] == "sparsify"
    assert choice["recipe"] in choice["accuracy"]
    assert {*choice["accuracy"], *choice["refused"]} == set(NAMES)
    assert run["notes"][0].startswith(f"{choice['reason']}; finding out took {choice['steps']:,} steps in ")
    assert "of 192 held-out rows" in choice["reason"], "all rows but those of the test part, each held out once"
    folds, steps = 3, 6 * 4  # of 25 steps, in whole epochs of 4
    assert choice["steps"] == len(choice["accuracy"]) * folds * steps
    assert run["seconds"] > choice["seconds"] > 0.0
    assert abs(run["macs"]["relative"] - 0.5) < 0.1


def test_what_is_trained_is_the_recipe_that_was_chosen(
    asked: tuple[Settings, Splits], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, splits = asked
    for name, expected in recipes(settings).items():
        monkeypatch.setattr(pilots, "try_recipes", lambda *_, name=name, **__: Choice(name, f"{name}: as told"))
        here = tmp_path / name.replace(" ", "-")
        told = run_one(settings, splits, here, show=False)
        alone = run_one(expected.resolved(splits), splits, here / "alone", show=False)
        assert told["valid"] == alone["valid"], name
        assert (told["macs"], told["layers"]) == (alone["macs"], alone["layers"])
        assert told["settings"] == json.loads(json.dumps(settings.to_json())), "found again by what was asked for"


def test_an_interrupted_run_does_not_repeat_the_choice(
    asked: tuple[Settings, Splits], finished: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, run = finished
    monkeypatch.setattr(pilots, "try_recipes", lambda *_, **__: pytest.fail("chosen already"))
    (folder / "run.json").unlink()
    assert run_one(*asked, folder, show=False)["choice"] == run["choice"]


def test_test_rows_decide_nothing(asked: tuple[Settings, Splits]) -> None:
    settings, splits = asked
    wrong = replace(splits, test=replace(splits.test, y=splits.test.y.flip(0)))
    found = [pilots.try_recipes(settings, one, device="cpu", show=False) for one in (splits, wrong)]
    assert found[0]._replace(seconds=0.0) == found[1]._replace(seconds=0.0)


def test_a_budget_that_pays_for_no_recipe_is_an_error_that_says_why(asked: tuple[Settings, Splits]) -> None:
    settings, splits = asked
    broken = replace(settings, pattern="nonsense")
    with pytest.raises(ValueError, match="nonsense"):
        MODELS["sparsify"](broken, splits)


@pytest.mark.parametrize(
    ("rows", "batch", "epochs"), [(124, 16, 63), (400, 16, 30), (1222, 64, 30), (5000, 128, 30), (20, 16, 250)]
)
def test_every_model_takes_enough_steps_on_a_small_table(rows: int, batch: int, epochs: int) -> None:
    part = check_arrays(torch.randn(rows, 4), torch.arange(rows) % 2)
    splits = Splits("mine", part, part, part, 2, 0.0, 1.0)
    for model in MODELS:
        found = Settings(model=model).resolved(splits)
        assert (found.batch, found.epochs) == (batch, epochs), model
    known = replace(splits, name="pbmc3k")
    assert Settings(model="rigl").resolved(known).batch == min(128, rows), (
        "stored runs of known data stay what they are"
    )
