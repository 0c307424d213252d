"""The committed results: complete, traceable, asked for by the code, and none lost."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from dynamicgate.lab.result_file import read_runs, write_runs
from dynamicgate.lab.runner import jobs_of, load_tables
from dynamicgate.lab.runner.results import find_runs
from tests.places import ROOT

RESULTS = ROOT / "experiments" / "results"
TABLES = sorted(RESULTS.rglob("*.jsonl"))
MADE_BY = ("dynamicgate compare", "dynamicgate paper", "python -m dynamicgate.paper", "python experiments/")


@pytest.fixture(scope="module")
def history() -> set[str] | None:
    """The commits of this repository, abbreviated as results name them; None where they cannot be asked for."""
    told = subprocess.run(
        ["git", "-C", str(ROOT), "log", "--format=%h", "--abbrev=12"], capture_output=True, text=True
    )  # fmt: skip
    shallow = (ROOT / ".git" / "shallow").exists()
    return None if told.returncode or shallow else set(told.stdout.split())


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.relative_to(RESULTS).with_suffix("").as_posix())
def test_a_results_table_is_complete_and_traceable(path: Path, history: set[str] | None, tmp_path: Path) -> None:
    runs = read_runs(path)
    hashes = [run["hash"] for run in runs]
    assert all(len(found) == 8 and int(found, 16) >= 0 for found in hashes)
    assert len(set(hashes)) == len(hashes)
    assert [(run["model"], run["seed"]) for run in runs] == sorted({(run["model"], run["seed"]) for run in runs})
    for meta in (run["meta"] for run in runs):
        assert meta["created"]
        assert meta["versions"]["torch"]
        assert meta["machine"]["threads"] >= 1
        assert meta["command"].startswith(MADE_BY)
        assert meta["data"]["train"] > 0
        assert not meta.get("quick", False)
        if meta["commit"] == "unknown":
            assert meta["recorded_commit"]
        else:
            assert history is None or meta["commit"] in history
    write_runs(tmp_path / path.name, runs)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "written by `write_runs`, not by hand"


@pytest.mark.parametrize("experiment", ["paper", "frontier"])
def test_every_stored_run_is_one_that_the_code_asks_for(experiment: str) -> None:
    jobs = jobs_of(load_tables(ROOT / "experiments" / experiment), seeds=None, quick=False)
    found, stale = find_runs(RESULTS / experiment, jobs)
    assert stale == []
    assert len(found) == sum(len(read_runs(path)) for path in (RESULTS / experiment).rglob("*.jsonl"))


def test_no_run_is_lost() -> None:
    counts = {
        name: sum(len(read_runs(path)) for path in (RESULTS / name).rglob("*.jsonl")) for name in ("paper", "frontier")
    }
    assert counts["paper"] >= 620
    assert counts["frontier"] >= 2930


def test_results_are_few_files() -> None:
    count = sum(len(list((ROOT / name / "results").rglob("*.json*"))) for name in ("experiments", "benchmarks"))
    assert count < 80
