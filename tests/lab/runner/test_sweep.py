"""Sweeps: the same trials and results in one process, in several, and after a kill."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamicgate.lab.cli import main as command_line
from dynamicgate.lab.methods import Settings
from dynamicgate.lab.runner.pool import ProcessPool
from dynamicgate.lab.runner.search_space import Parameter, check_space, read_parameter, usual_space, with_values
from tests import forked
from tests.lab.runner.clouds import write_clouds
from tests.lab.runner.sweeping import content, run
from tests.places import ROOT

pytest.importorskip("optuna")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clouds(tmp_path_factory.mktemp("data") / "clouds.npz")


@pytest.fixture(scope="module")
def one(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A sweep of eight trials by one process."""
    folder = tmp_path_factory.mktemp("one")
    return folder, run(folder, data)


def test_trials_try_different_values_and_some_are_stopped_early(one: tuple[Path, dict[str, Any]]) -> None:
    meta, rows = one[1]["meta"], one[1]["runs"]
    assert [row["number"] for row in rows] == list(range(8))
    assert rows[0]["params"] == {"lr": 0.003, "block": 1, "dropout": 0.1}, "the settings that the sweep starts from"
    assert len({row["params"]["lr"] for row in rows}) == 8
    assert all(0.001 <= row["params"]["lr"] <= 0.05 for row in rows)
    states = Counter(row["state"] for row in rows)
    assert states.keys() == {"complete", "pruned"}
    whole = 5 * 5  # 163 rows in batches of 40
    for row in rows:
        assert row["steps"] == 5 * len(row["epochs"])
        assert (row["steps"] < whole) == (row["state"] == "pruned")
    complete = [row for row in rows if row["state"] == "complete"]
    best = max(complete, key=lambda row: (row["valid"]["accuracy"], -row["number"]))
    assert meta["best"]["number"] == best["number"]
    assert meta["best"]["params"] == best["params"]
    found = json.loads((one[0] / "trials" / f"{best['number']:04d}" / "run.json").read_text())
    assert meta["best"]["quality"] == found["quality"]


def test_ended_trials_are_not_repeated_and_more_can_be_asked_for(
    one: tuple[Path, dict[str, Any]], data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, before = one
    times = {path: path.stat().st_mtime_ns for path in folder.rglob("run.json")}
    assert run(folder, data) == before
    assert "8 of 8 trials found" in capsys.readouterr().err
    more = run(folder, data, trials=9)
    assert more["runs"][:8] == before["runs"]
    assert {path: path.stat().st_mtime_ns for path in times} == times


@pytest.mark.slow
def test_two_processes_give_the_same_file_as_one(one: tuple[Path, dict[str, Any]], data: Path, tmp_path: Path) -> None:
    assert run(tmp_path, data, engine=ProcessPool(2)) == one[1]


@pytest.mark.slow
def test_a_killed_sweep_is_continued_by_others_to_the_same_file(
    one: tuple[Path, dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    """One process is killed in the middle of a trial; another one and this one share the rest."""
    words = ["-m", "tests.lab.runner.sweeping", str(tmp_path), str(data), "8"]
    killed = forked.start(words, cwd=ROOT)
    until, log = time.monotonic() + 120, tmp_path / "trials" / "0002" / "log.jsonl"
    while not log.exists() and killed.poll() is None and time.monotonic() < until:
        time.sleep(0.002)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "trials" / "0003").exists(), "it was killed in trial 2"
    beside = forked.start(words, cwd=ROOT)
    run(tmp_path, data)
    assert beside.wait(120).returncode == 0
    assert run(tmp_path, data) == one[1]


def test_half_a_line_of_the_journal_which_a_killed_process_left_is_cut_off(
    one: tuple[Path, dict[str, Any]], data: Path, tmp_path: Path
) -> None:
    """Otherwise the next line would be appended to it, and the study could never be read again."""
    journal = tmp_path / "study.journal"
    for trials, left in ((1, '{"op_code": 5, "worker_id": "'), (2, '{"op_code'), (8, "")):
        found = run(tmp_path, data, trials=trials)
        with journal.open("a") as file:
            file.write(left)
    assert found == one[1]
    assert [path.name for path in tmp_path.glob("*journal*")] == ["study.journal"]


def test_a_damaged_journal_is_named(data: Path, tmp_path: Path) -> None:
    run(tmp_path, data, trials=1)
    journal = tmp_path / "study.journal"
    lines = journal.read_text().splitlines()
    journal.write_text("\n".join([*lines[:3], lines[3][:20], *lines[4:]]) + "\n")
    with pytest.raises(ValueError, match=r"study.journal is damaged \(.*\): put back a copy of it, or delete it"):
        run(tmp_path, data, trials=1)


def test_tpe_and_the_median_pruner_can_be_chosen(data: Path, tmp_path: Path) -> None:
    found = run(tmp_path, data, trials=3, sampler="tpe", pruner="median")
    assert len({row["params"]["lr"] for row in found["runs"]}) == 3
    with pytest.raises(ValueError, match="holds a sweep with another pruner, sampler: choose another folder"):
        run(tmp_path, data, trials=3)
    (tmp_path / "study.journal").unlink()
    with pytest.raises(ValueError, match="holds trials of a study that is gone"):
        run(tmp_path, data, trials=3)


def test_values_that_cannot_be_trained_are_failed_trials(data: Path, tmp_path: Path) -> None:
    words = ["sweep", "--data", str(data), "--trials", "4", "--epochs", "1", "--out", str(tmp_path / "out")]
    assert command_line([*words, "--search", "hidden=256,0"]) == 0
    runs = content(tmp_path / "out")["runs"]
    assert {row["params"]["hidden"]: row["state"] for row in runs} == {"256": "complete", "0": "fail"}
    assert all("hidden widths must be 1 or more" in row["error"] for row in runs if row["state"] == "fail")
    words[words.index("--out") + 1] = str(tmp_path / "none")
    assert command_line([*words, "--search", "lr=1e30:1e31"]) == 2


@pytest.mark.parametrize(
    ("change", "trials", "sentence"),
    [
        ({"model": "cascade"}, 2, "one network a trial: expected one of dense, .*, received 'cascade'"),
        ({"patience": 2}, 2, "stops trials itself, by their epochs: leave out patience"),
        ({}, 0, "at least one trial is needed, received 0"),
    ],
)
def test_a_sweep_that_means_nothing_is_refused(
    data: Path, tmp_path: Path, change: dict[str, Any], trials: int, sentence: str
) -> None:
    from dynamicgate.lab.runner.sweep import new_sweep

    with pytest.raises(ValueError, match=sentence):
        new_sweep(replace(Settings(data=str(data)), **change), (), trials, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_ranges_and_choices_are_read() -> None:
    assert read_parameter("lr=0.001:0.1:log") == Parameter("lr", 0.001, 0.1, log=True)
    assert read_parameter("lr=0.001:0.1:log").at(0.5) == pytest.approx(0.01)
    assert read_parameter("dropout=0:0.4").at(0.25) == pytest.approx(0.1)
    assert read_parameter("batch=16:19").is_whole
    assert Counter(read_parameter("batch=16:19").at((k + 0.5) / 400) for k in range(400)) == dict.fromkeys(
        range(16, 20), 100
    )
    assert read_parameter("block=1,2,4").choices == (1, 2, 4)
    assert [read_parameter("net=linear,low-rank").at(place) for place in (0.0, 0.49, 0.51, 0.999)] == [
        "linear", "linear", "low-rank", "low-rank",
    ]  # fmt: skip
    assert with_values(Settings(), {"hidden": "128x64", "lr": 0.1}).hidden == (128, 64)
    names = [parameter.name for parameter in usual_space(Settings(model="small", lr=0.01))]
    assert names == ["lr", "weight_decay", "dense_dropout"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("learning=1:2", "cannot search 'learning'; it can search accumulate, "),
        ("budget=0.1:0.2", "cannot search 'budget'"),
        ("lr", "--search takes NAME=LOW:HIGH"),
        ("lr=0.1:0.01", "the range of lr must go up, received 0.1:0.01"),
        ("lr=0:0.1:log", "a logarithmic range starts above 0, received lr=0:0.1:log"),
        ("lr=low:high", "takes two numbers"),
        ("lr=0.1:0.2:lin", "takes lr=LOW:HIGH or LOW:HIGH:log"),
    ],
)
def test_a_mistake_in_the_search_is_explained(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_parameter(text)
    with pytest.raises(ValueError, match="lr is searched twice"):
        check_space([Parameter("lr", 1, 2), Parameter("lr", 1, 2)])
