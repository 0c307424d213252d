"""The committed results: complete, traceable, asked for by the code, and none lost."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from experiments.frontier import latency
from experiments.frontier.experiment import FRONTIER
from experiments.paper.experiment import PAPER
from experiments.sparse_mnist import SPARSE_MNIST
from experiments.stages import latency as stages_latency
from experiments.stages.experiment import STAGES
from experiments.transfer.experiment import TRANSFER

from dynamicgate.lab.result_file import KEY, read_runs, write_runs
from dynamicgate.lab.runner.results import find_runs
from tests.places import ROOT

RESULTS = ROOT / "experiments" / "results"
TABLES = sorted(RESULTS.rglob("*.jsonl"))
OTHERS = sorted(RESULTS.rglob("*.json"))
LATENCIES = latency.latency_path(FRONTIER)
KEYS = {LATENCIES: latency.KEY, stages_latency.latency_path(STAGES): stages_latency.KEY}  # of files with latencies
SHUT = 0.02  # of the blocks open, on test rows
RUNS = {
    "paper": (PAPER, 660),
    "frontier": (FRONTIER, 0),  # to be run anew: experiments/frontier/protocol.md
    "sparse-mnist": (SPARSE_MNIST, 45),
    "transfer": (TRANSFER, 450),
    "stages": (STAGES, 908),
}
COMMANDS = ("python -m experiments.", "python experiments/", "python -m dynamicgate.paper", "dynamicgate paper")


@pytest.fixture(scope="module")
def history() -> set[str] | None:
    """The commits of this repository, abbreviated as results name them; None where git cannot list all of them."""
    found = subprocess.run(
        ["git", "-C", str(ROOT), "log", "--format=%h", "--abbrev=12"], capture_output=True, text=True
    )  # fmt: skip
    shallow = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--is-shallow-repository"], capture_output=True, text=True
    )
    return None if found.returncode or shallow.stdout.strip() == "true" else set(found.stdout.split())


def check_origin(meta: dict[str, object], history: set[str] | None) -> None:
    """Complete, and of a commit that is in the history or marked as unknown."""
    assert meta["created"]
    assert meta["versions"]["torch"]  # type: ignore[index]
    assert meta["machine"]["threads"] >= 1  # type: ignore[index]
    assert str(meta["command"]).startswith(COMMANDS)
    assert not meta.get("quick", False)
    if meta["commit"] == "unknown":
        assert meta["recorded_commit"]
    else:
        assert history is None or meta["commit"] in history


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.relative_to(RESULTS).with_suffix("").as_posix())
def test_a_results_table_is_complete_and_traceable(path: Path, history: set[str] | None, tmp_path: Path) -> None:
    key = KEYS.get(path, KEY)
    runs = read_runs(path)
    hashes = [run["hash"] for run in runs]
    assert all(len(found) == 8 and int(found, 16) >= 0 for found in hashes)
    assert len(set(hashes)) == len(hashes)
    names = [tuple(run[name] for name in key) for run in runs]
    assert names == sorted(set(names))
    for run in runs:
        check_origin(run["meta"], history)
        assert path in KEYS or run["meta"]["data"]["train"] > 0
    write_runs(tmp_path / path.name, runs, key)
    assert (tmp_path / path.name).read_bytes() == path.read_bytes(), "written by `write_runs`, not by hand"


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.relative_to(RESULTS).with_suffix("").as_posix())
def test_no_gate_is_shut_in_a_run_that_names_no_collapse(path: Path) -> None:
    shut = [
        f"{run['model']} seed {run['seed']}"
        for run in read_runs(path)
        if any(gate["open"] < SHUT for gate in run.get("gates") or ()) and not run["collapses"]
    ]
    assert shut == []


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: path.stem)
def test_other_results_are_traceable_too(path: Path, history: set[str] | None) -> None:
    check_origin(json.loads(path.read_text(encoding="utf-8"))["meta"], history)


@pytest.mark.parametrize("name", RUNS)
def test_every_stored_run_is_one_that_the_code_asks_for_and_none_is_lost(name: str) -> None:
    experiment, least = RUNS[name]
    found, stale = find_runs(experiment.results, experiment.jobs())
    assert stale == []
    paths = [path for path in experiment.results.rglob("*.jsonl") if path not in KEYS]
    assert len(found) == sum(len(read_runs(path)) for path in paths)
    assert len(found) >= least


def test_every_stored_latency_is_that_of_a_model_that_the_code_asks_for() -> None:
    found = latency.read_latencies(FRONTIER)
    assert sum(map(len, found.values())) == len(read_runs(LATENCIES))
