"""The engine: runs that are found by their hash, side by side, again after a kill, the same every time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamicgate.__main__ import main as command_line
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.result_file import read_runs, write_runs
from dynamicgate.lab.runner import Change, Job, find_folder, jobs_of, load_tables, run_jobs
from dynamicgate.lab.runner.pool import Progress, spoken
from dynamicgate.lab.runner.prepared import file_name, load_splits, prepare
from dynamicgate.lab.runner.results import StaleRunsWarning, collect, read_results

RECIPE = '''
"""Three clouds."""
from dynamicgate.lab.runner import Recipe, Table, step_settings, train_settings

SHARED = {{"budget": 0.5, "hidden": [16], "epochs": 3, "batch": 32, "lr": 1e-2}}
OURS = Recipe(
    kind="ours", data={data!r}, models={{"dense": SHARED, "gate": SHARED, "rigl": SHARED}}, seeds=(0, 1),
    train=train_settings, step=step_settings, quick_rows=60,
)
TABLE = Table(
    name="clouds", section="5.9", title="Clouds", whole=500, paper={{"dense": {{"accuracy": 0.9}}}}, recipes=(OURS,)
)
'''
CLAIMS = """
from dynamicgate.lab.runner import Claim, Verdict

def easy(e):
    return Verdict("holds", f"{e.mean('clouds', 'ours', 'dense', 'accuracy'):.2f}")


CLAIMS = (Claim("5.9", "Clouds are easy", easy),)
"""


def without_rows(splits: Splits) -> Splits:
    return splits


def new_checkout(folder: Path) -> Path:
    """A checkout with one recipe."""
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    np.savez(folder / "clouds.npz", x=random.normal(size=(3, 10))[y] + 0.4 * random.normal(size=(240, 10)), y=y)
    recipes = folder / "experiments" / "paper"
    recipes.mkdir(parents=True)
    (recipes / "clouds.py").write_text(RECIPE.format(data=str(folder / "clouds.npz")))
    (recipes / "claims.py").write_text(CLAIMS)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout in which nothing has been run."""
    return new_checkout(tmp_path)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A checkout in which everything has been run, and how many runs that were."""
    checkout = new_checkout(tmp_path_factory.mktemp("paper"))
    return checkout, run(checkout)[0]


def run(checkout: Path, *, processes: int = 1, out: str = "results", quick: bool = False) -> tuple[int, Path]:
    folder = find_folder(checkout / "experiments" / "paper")
    jobs = jobs_of(load_tables(folder), seeds=None, quick=quick)
    results = checkout / out
    done = run_jobs(jobs, recipes=folder, results=results, work=checkout / f"{out}-work", processes=processes,
                    device="cpu", command="dynamicgate paper all")  # fmt: skip
    return done, results


def content(results: Path) -> dict[tuple[str, int], Any]:
    """What the tables hold, apart from times."""
    found = {}
    for run in (run for path in sorted(results.rglob("*.jsonl")) for run in read_runs(path)):
        del run["meta"]["created"], run["meta"]["commit"], run["seconds"], run["seconds_relative"]
        found[run["model"], run["seed"]] = run
    return found


def test_runs_are_done_once_and_again_if_deleted_with_the_same_result(finished: tuple[Path, int]) -> None:
    checkout, done = finished
    results, work = checkout / "results", checkout / "results-work"
    first = content(results)
    assert done == len(first) == 6
    before = (results / "clouds.jsonl").read_bytes()
    assert run(checkout)[0] == 0
    assert (results / "clouds.jsonl").read_bytes() == before
    assert not list(checkout.rglob("last.safetensors")), "checkpoints are only for what is not finished"
    runs = read_runs(results / "clouds.jsonl")
    write_runs(results / "clouds.jsonl", [one for one in runs if (one["model"], one["seed"]) != ("gate", 1)])
    assert run(checkout)[0] == 0, "it is still in its folder, and collected again"
    assert (results / "clouds.jsonl").read_bytes() == before
    write_runs(results / "clouds.jsonl", [one for one in runs if (one["model"], one["seed"]) != ("gate", 1)])
    shutil.rmtree(next(work.rglob("gate-s1-*")))
    assert run(checkout)[0] == 1
    assert content(results) == first
    again = {one["hash"]: one["meta"]["created"] for one in read_runs(results / "clouds.jsonl")}
    assert sum(again[one["hash"]] == one["meta"]["created"] for one in runs) >= 5, "all others are kept as they were"


def test_a_run_with_other_settings_is_called_stale_run_again_and_replaced(
    finished: tuple[Path, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished[0], tmp_path, dirs_exist_ok=True)
    path = tmp_path / "results" / "clouds.jsonl"
    runs = read_runs(path)
    for one in runs:
        one["hash"] = "00000000" if (one["model"], one["seed"]) == ("rigl", 0) else one["hash"]
    write_runs(path, runs)
    shutil.rmtree(next((tmp_path / "results-work").rglob("rigl-s0-*")))
    jobs = jobs_of(load_tables(find_folder(tmp_path / "experiments" / "paper")), seeds=None, quick=False)
    with pytest.warns(StaleRunsWarning, match="1 stored runs are stale, .*: clouds rigl seed 0; they are left out"):
        found, _ = read_results(tmp_path / "results", jobs)
    assert [len(rows) for rows in found.values()] == [2, 2, 1]
    assert run(tmp_path)[0] == 1
    assert "clouds rigl seed 0; they are run again and replaced" in capsys.readouterr().err
    assert content(tmp_path / "results") == content(finished[0] / "results")


def test_collect_adds_to_what_a_table_holds(finished: tuple[Path, int], tmp_path: Path) -> None:
    checkout = finished[0]
    jobs = jobs_of(load_tables(find_folder(checkout / "experiments" / "paper")), seeds=None, quick=False)
    work = checkout / "results-work"
    assert collect(tmp_path, work, jobs[:2]) == 2
    assert collect(tmp_path, work, jobs[1:]) == 4
    assert collect(tmp_path, work, jobs) == 0
    assert (tmp_path / "clouds.jsonl").read_bytes() == (checkout / "results" / "clouds.jsonl").read_bytes()


def test_side_by_side_the_results_are_the_same(finished: tuple[Path, int]) -> None:
    assert content(run(finished[0], processes=2, out="beside")[1]) == content(finished[0] / "results")


def test_a_result_says_what_it_is_and_where_it_comes_from(finished: tuple[Path, int]) -> None:
    results = finished[0] / "results"
    for told in read_runs(results / "clouds.jsonl"):
        assert told["meta"].keys() >= {"command", "versions", "machine", "quick", "data"}
        assert told["meta"]["machine"]["threads"] == 1
        assert told["meta"]["data"]["train"] == 163
        assert told.keys() >= {"hash", "quality", "macs", "proxies", "params", "settings", "steps", "valid"}
        assert all("open_by_class" not in gate for gate in told["gates"]), "small"
        assert told["seconds_relative"] > 0


def test_after_a_kill_only_the_rest_is_run(finished: tuple[Path, int], tmp_path: Path) -> None:
    checkout = tmp_path
    (checkout / "experiments").mkdir()
    shutil.copytree(finished[0] / "experiments" / "paper", checkout / "experiments" / "paper")
    words = [sys.executable, "-m", "dynamicgate.lab.runner", "all", "--jobs", "1", "--device", "cpu"]
    work = checkout / "runs" / "paper"
    process = subprocess.Popen(words, cwd=checkout, stderr=subprocess.DEVNULL, start_new_session=True)
    while not list(work.rglob("result.json")) and process.poll() is None:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = {path: path.stat().st_mtime_ns for path in work.rglob("result.json")}
    assert 1 <= len(kept) < 6
    told = subprocess.run(words, cwd=checkout, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    whole = content(finished[0] / "results")
    for result in whole.values():
        result["meta"]["command"] = "python -m dynamicgate.paper all"
    assert content(checkout / "experiments" / "results" / "paper") == whole
    page = (checkout / "docs" / "paper.md").read_text()
    assert "| 5.9 | Clouds are easy | **holds** |" in page
    assert "(a subset: 192 of 500 training rows)" in page


def test_quick_results_lie_apart_and_say_so(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(sys, "argv", ["dynamicgate", "paper", "clouds/ours", "--quick", "--jobs", "1"])
    assert command_line() == 0
    assert not (checkout / "experiments" / "results").exists()
    assert not (checkout / "docs").exists()
    found = content(checkout / "runs" / "paper-quick" / "results")
    assert len(found) == 3, "one seed"
    for told in found.values():
        assert told["meta"]["quick"]
        assert told["meta"]["data"]["train"] == 60
        assert told["settings"]["epochs"] == 1
    told = capsys.readouterr()
    assert "wrote runs/paper-quick/paper.md" in told.out
    assert "[3/3] clouds ours  rigl seed 0" in told.err
    summary = json.loads((checkout / "runs" / "paper-quick" / "clouds" / "ours" / "results.json").read_text())
    assert [run["model"] for run in summary["runs"]] == ["dense", "gate", "rigl"]
    assert "open_by_class" in summary["runs"][1]["gates"][0], "for the report"


def test_everything_that_decides_a_result_is_in_its_name(checkout: Path) -> None:
    (table,) = load_tables(checkout / "experiments" / "paper", "clouds")
    recipe = table.recipes[0]
    job = Job(table, recipe, "dense", 0)
    others = [
        replace(job, model="gate"),
        replace(job, seed=1),
        replace(job, quick=True),
        replace(job, recipe=replace(recipe, revision=2)),
        replace(job, recipe=replace(recipe, data_options={"a": 1})),
        replace(job, recipe=replace(recipe, data="other")),
        replace(job, recipe=replace(recipe, changes=(Change("fewer", without_rows),))),
        replace(job, recipe=replace(recipe, models={"dense": {**recipe.models["dense"], "lr": 2e-2}})),
    ]
    assert len({job.hash, *(other.hash for other in others)}) == len(others) + 1
    assert replace(job, folder=Path("elsewhere"), device="cuda").name == job.name


def test_runs_on_different_data_are_not_put_in_one_table(finished: tuple[Path, int], tmp_path: Path) -> None:
    checkout, results = finished[0], tmp_path / "results"
    shutil.copytree(checkout / "results", results)
    runs = read_runs(results / "clouds.jsonl")
    runs[1]["meta"]["data"]["train"] += 1
    write_runs(results / "clouds.jsonl", runs)
    jobs = jobs_of(load_tables(checkout / "experiments" / "paper"), seeds=None, quick=False)
    with pytest.raises(ValueError, match="the runs of clouds/ours are on different data"):
        read_results(results, jobs)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["cloud"], "unknown table 'cloud': the tables are clouds, or all"),
        (["clouds/published"], "clouds has the recipes ours, received 'published'"),
        (["clouds", "--seeds", "0"], "at least one seed is needed, received 0"),
        (["clouds", "--jobs", "0"], "at least one job at a time is needed, received 0"),
        (["clouds", "--recipes", "nowhere"], "no recipe files in nowhere: `dynamicgate paper` runs in a checkout"),
    ],
)
def test_a_mistake_gets_a_sentence(
    words: list[str], sentence: str, checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    monkeypatch.setattr(sys, "argv", ["dynamicgate", "paper", *words])
    assert command_line() == 2
    assert sentence in capsys.readouterr().err


def test_outside_a_checkout_the_command_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match="runs in a checkout of DynamicGate"):
        find_folder()


def test_prepared_data_are_read_instead_of_the_originals(checkout: Path) -> None:
    (table,) = load_tables(checkout / "experiments" / "paper", "clouds")
    recipe = replace(table.recipes[0], seeds=(0, 1))
    written = prepare([replace(table, recipes=(recipe,))], checkout / "data" / "prepared", None)
    assert len(written) == 2
    original = load_splits(recipe, 1, None)
    assert written[1].name == file_name(recipe.data, recipe.data_options, 1)
    (checkout / "clouds.npz").unlink()
    read = load_splits(recipe, 1, checkout / "data")
    for part in ("train", "valid", "test"):
        assert (getattr(read, part).values == getattr(original, part).values).all()
        assert (getattr(read, part).y == getattr(original, part).y).all()
    assert (read.mean == original.mean).all()
    assert (read.name, read.classes, read.class_names) == (original.name, original.classes, original.class_names)


def test_the_time_left_is_judged_by_runs_of_the_same_recipe(checkout: Path) -> None:
    (table,) = load_tables(checkout / "experiments" / "paper", "clouds")
    other = replace(table, name="other")
    jobs = [Job(t, t.recipes[0], "dense", seed) for t in (table, other) for seed in range(4)]
    progress = Progress(jobs, processes=2)
    order: Any = type("Order", (), {"table": "clouds", "kind": "ours", "model": "dense", "seed": 0})()
    line = progress.line(order, "90.00%  MACs 1.000", 10.0)
    assert line == "[1/8] clouds ours  dense seed 0  90.00%  MACs 1.000  10 s  about 35 s left"
    order.table = "other"
    progress.line(order, "", 100.0)
    assert progress.remaining() == pytest.approx((3 * 10 + 3 * 100) / 2)
    assert [spoken(s) for s in (5, 100, 7200)] == ["5 s", "2 min", "2.0 h"]
