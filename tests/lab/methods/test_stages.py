"""Models in stages and their controls: the budget, what test rows are used for, and runs found again and continued."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.gating.stages import stages_of
from dynamicgate.io.model_file import load
from dynamicgate.lab.datasets.loading import load_dataset
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import Settings, cascade, run_one, settings_hash, train_one
from dynamicgate.lab.methods.hyperparameters import STAGED

BUDGET = 0.15
Made = tuple[dict[str, Any], Path]


@pytest.fixture(scope="module")
def splits() -> Splits:
    pytest.importorskip("sklearn")
    return load_dataset("digits").flat()


@pytest.fixture(scope="module")
def asked() -> Settings:
    return Settings(budget=BUDGET, epochs=4, hidden=(64,))


@pytest.fixture(scope="module")
def runs(splits: Splits, asked: Settings, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """A run of each, and its folder."""
    folder = tmp_path_factory.mktemp("stages")
    return {
        name: (run_one(replace(asked, model=name).resolved(splits), splits, folder / name, show=False), folder / name)
        for name in STAGED
    }


def valid_relative(run: dict[str, Any]) -> float:
    """Executed MACs on validation rows, relative to the dense network that was asked for."""
    return float(run["valid"]["relative"])


@pytest.mark.parametrize("model", ["staged", "cascade"])
def test_the_cut_is_where_validation_rows_meet_the_budget(model: str, runs: dict[str, Made], splits: Splits) -> None:
    run, _ = runs[model]
    one_row_more = run["stages"]["relative"][-1] / len(splits.valid)
    assert BUDGET - one_row_more <= valid_relative(run) <= BUDGET + 1e-6


@pytest.mark.parametrize("model", STAGED)
def test_a_run_says_what_each_stage_did(model: str, runs: dict[str, Made], splits: Splits) -> None:
    run, folder = runs[model]
    stages, curve = run["stages"], run["curve"]
    assert stages["open"][0] == 1.0
    assert stages["open"] == sorted(stages["open"], reverse=True)
    costs = [0.4 * BUDGET, 1.4 * BUDGET, 3.9 * BUDGET]
    assert stages["relative"] == pytest.approx(costs, rel=0.05), "what the stages of the plan cost, one after the other"
    stopped = [a - b for a, b in zip(stages["open"], [*stages["open"][1:], 0.0], strict=True)]
    mean = sum(fraction * cost for fraction, cost in zip(stopped, stages["relative"], strict=True))
    assert run["macs"]["relative"] == pytest.approx(mean)
    dealt = sum(fraction * accuracy for fraction, accuracy in zip(stopped, stages["accuracy"], strict=True))
    assert stages["random"] == pytest.approx(dealt)
    assert [curve[i]["accuracy"] for i in (0, -1)] == [stages["accuracy"][0], stages["accuracy"][-1]]
    assert curve[-1]["relative"] == pytest.approx(stages["relative"][-1])
    levels = json.loads((folder / "samples.json").read_text())["levels"]
    assert [level["macs"] / run["macs"]["dense"] for level in levels] == pytest.approx(stages["relative"])
    assert [level["count"] / len(splits.test) for level in levels] == pytest.approx(stopped)
    wrong = sum(level["wrong"] for level in levels) / len(splits.test)
    assert 1.0 - wrong == pytest.approx(run["quality"]["accuracy"])


@pytest.mark.parametrize("model", STAGED)
def test_a_finished_run_is_found_again_and_is_json(
    model: str, runs: dict[str, Made], splits: Splits, asked: Settings
) -> None:
    run, folder = runs[model]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    again = run_one(replace(asked, model=model).resolved(splits), splits, folder, show=False)
    assert again == json.loads(json.dumps(run))
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    for path in folder.rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refuse)


def test_the_networks_of_a_cascade_never_see_a_test_row(
    runs: dict[str, Made], splits: Splits, asked: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, folder = runs["cascade"]
    for k in (1, 2, 3):
        shutil.copytree(folder / f"net-{k}", tmp_path / f"net-{k}")
    parts: list[Splits] = []
    read: list[Arrays] = []
    outputs: Callable[..., torch.Tensor] = cascade.outputs_of

    def run_blind(settings: Settings, seen: Splits, place: Path, **options: Any) -> dict[str, Any]:
        parts.append(seen)
        return run_one(settings, seen, place, **options)

    def spy(nets: Any, part: Arrays) -> torch.Tensor:
        read.append(part)
        return outputs(nets, part)

    monkeypatch.setattr(cascade, "outputs_of", spy)
    chosen = replace(asked, model="cascade").resolved(splits)
    options: dict[str, Any] = {"device": "cpu", "label": "cascade", "show": False}
    run = cascade.train_cascade(chosen, splits, tmp_path, run_one=run_blind, **options)
    assert [part.test is splits.valid for part in parts] == [True] * 3
    assert [part is splits.test for part in read] == [False, True], "once, by the whole"
    assert {**run, "seconds": 0} == {**made, "seconds": 0}
    half = splits.test.take(torch.arange(0, len(splits.test), 2))
    other = cascade.train_cascade(chosen, replace(splits, test=half), tmp_path, run_one=run_blind, **options)
    assert other["valid"] == run["valid"], "other test rows decide nothing"
    assert other["quality"] != run["quality"]


def test_stages_opened_at_random_are_the_same_stages_at_the_same_rates(runs: dict[str, Made], splits: Splits) -> None:
    models = [load(runs[name][1] / "model.safetensors") for name in ("staged", "staged-random")]
    weights = [dict(model.named_parameters()) for model in models]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    chosen = dg.measure(models[0], splits.valid).stages
    assert chosen is not None
    gate = stages_of(models[1])
    assert gate is not None
    rates = [b / a for a, b in zip(chosen["open"], chosen["open"][1:], strict=False)]
    assert (1.0 - gate.cut).tolist() == pytest.approx(rates, abs=1e-6)
    opened = runs["staged-random"][0]["stages"]["open"]
    for expected, found in zip(chosen["open"], opened, strict=True):
        assert abs(found - expected) <= 4 * (expected * (1 - expected) / len(splits.test)) ** 0.5
    real, dealt = (abs(runs[name][0]["stages"]["cost_error"]) for name in ("staged", "staged-random"))
    assert dealt < real


def test_a_cascade_that_was_stopped_continues_with_the_network_it_was_at(
    runs: dict[str, Made], splits: Splits, asked: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen, trained = replace(asked, model="cascade").resolved(splits), train_one.fit

    def stop_at_the_second(*arguments: Any, **options: Any) -> Any:
        if options["out"].name == "net-2":
            raise KeyboardInterrupt
        return trained(*arguments, **options)

    monkeypatch.setattr(train_one, "fit", stop_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        run_one(chosen, splits, tmp_path, show=False)
    assert not (tmp_path / "run.json").exists()
    labels: list[str] = []

    def remember(*arguments: Any, **options: Any) -> Any:
        labels.append(options["label"])
        return trained(*arguments, **options)

    monkeypatch.setattr(train_one, "fit", remember)
    run = run_one(chosen, splits, tmp_path, show=False)
    assert labels == ["cascade seed 0, network 2 of 3", "cascade seed 0, network 3 of 3"]
    assert {**run, "seconds": 0} == {**runs["cascade"][0], "seconds": 0}


def test_the_networks_of_a_cascade_have_teachers_and_the_cascade_has_none(
    splits: Splits, asked: Settings, tmp_path: Path
) -> None:
    chosen = replace(asked, model="cascade", stages="two", epochs=1, distill_weight=0.5).resolved(splits)
    run = run_one(chosen, splits, tmp_path, show=False)
    found = sorted(path.parent.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("teacher/run.json"))
    assert found == ["net-1/teacher", "net-2/teacher"]
    assert len(run["stages"]["open"]) == 2


def test_what_is_asked_of_stages_alone_does_not_make_another_cascade(splits: Splits, asked: Settings) -> None:
    def hashes(model: str) -> list[str]:
        one = replace(asked, model=model)
        other = replace(one, focus=0.3, decide="head")
        return [settings_hash(settings.resolved(splits), splits) for settings in (one, other)]

    assert len(set(hashes("cascade"))) == 1
    assert len(set(hashes("staged"))) == 2


def test_a_budget_that_pays_for_all_stages_is_refused(splits: Splits) -> None:
    with pytest.raises(ValueError, match="pays for all stages of every input: stages would save nothing"):
        Settings(model="staged", budget=0.95).resolved(splits)
