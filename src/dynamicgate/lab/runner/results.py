"""Finished runs: a file for each where it was made, and the committed tables that `collect` merges them into."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from dynamicgate.display import first_few
from dynamicgate.files import read_json, write_results, write_text
from dynamicgate.lab.result_file import Run, read_runs, write_runs
from dynamicgate.lab.runner.jobs import Job

FINISHED = "result.json"
NAMED = 5
SIZES = ("name", "train", "valid", "test", "features", "classes")
Runs = dict[tuple[str, str], list[Run]]
"""By table and model, in the order of the seeds."""


class StaleRunsWarning(UserWarning):
    """A results table holds runs that were made with other settings than the code now asks for."""


def table_path(results: Path, table: str) -> Path:
    """The file of a table in a results folder."""
    return results / f"{table}.jsonl"


def write_finished(job: Job, meta: dict[str, Any], run: Run) -> None:
    """Write the result of a finished run into its folder: all of it except the map of open rates, which is large and
    only for the report."""
    gates = [{k: v for k, v in gate.items() if k != "open_by_class"} for gate in run.get("gates", [])]
    write_text(job.folder / FINISHED, json.dumps({**run, "gates": gates, "hash": job.hash, "meta": meta}))


def collect(results: Path, jobs: Iterable[Job]) -> int:
    """Merge what is finished in the folders of these jobs into the tables; returns how many runs are new to them.

    A run replaces the one of the same model and seed, all others are kept. Each table is written in one move.
    """
    finished: dict[str, list[Run]] = {}
    for job in jobs:
        path = job.folder / FINISHED
        if path.exists():
            finished.setdefault(job.table.name, []).append(read_json(path))
    new = 0
    for table, runs in finished.items():
        path = table_path(results, table)
        stored = {(run["model"], run["seed"]): run for run in read_runs(path)}
        fresh = {(run["model"], run["seed"]): run for run in runs}
        changed = [key for key, run in fresh.items() if stored.get(key) != run]
        if changed:
            write_runs(path, (stored | fresh).values())
        new += len(changed)
    return new


def find_runs(results: Path, jobs: Iterable[Job]) -> tuple[list[tuple[Job, Run]], list[Job]]:
    """The jobs whose runs are in the tables, with their runs, and those whose model and seed are there with another
    hash: stale, made with other settings than are asked for now. Every table is read once."""
    tables: dict[str, dict[tuple[str, int], Run]] = {}
    found, stale = [], []
    for job in jobs:
        name = job.table.name
        if name not in tables:
            tables[name] = {(run["model"], run["seed"]): run for run in read_runs(table_path(results, name))}
        run = tables[name].get((job.model, job.seed))
        if run is None:
            continue
        if run["hash"] == job.hash:
            found.append((job, run))
        else:
            stale.append(job)
    return found, stale


def say_stale(stale: Iterable[Job]) -> str:
    """How many runs are stale, and the first few of them."""
    names = [f"{job.table.name} {job.model} seed {job.seed}" for job in stale]
    return (
        f"{len(names)} stored runs are stale, made with other settings than the code asks for: "
        f"{first_few(names, NAMED)}"
    )


def read_results(results: Path, jobs: Iterable[Job]) -> tuple[Runs, dict[str, Run]]:
    """The stored runs of these jobs, each with `meta`, and what the data of each table are.

    Stale runs are left out, with a `StaleRunsWarning`.
    """
    found, stale = find_runs(results, jobs)
    if stale:
        warnings.warn(f"{say_stale(stale)}; they are left out, run them again", StaleRunsWarning, stacklevel=2)
    runs: Runs = {}
    data: dict[str, Run] = {}
    for job, run in found:
        table = job.table.name
        first, own = data.setdefault(table, run["meta"]["data"]), run["meta"]["data"]
        if any(first[key] != own[key] for key in SIZES):
            raise ValueError(
                f"the runs of {table} are on different data, {first} and {own}: delete those that are not wanted from "
                f"{table_path(results, table)} and run them again"
            )
        runs.setdefault((table, job.model), []).append(run)
    return runs, data


def write_for_report(results: Path, jobs: Sequence[Job]) -> list[Path]:
    """A results.json for each table in its folder of runs, from which `dynamicgate report` makes a page; returns these
    folders."""
    found, _ = find_runs(results, jobs)
    written: dict[Path, list[tuple[Job, Run]]] = {}
    for job, run in found:
        written.setdefault(job.work / job.table.name, []).append((job, run))
    for folder, stored in written.items():
        runs = []
        for job, run in stored:
            own = job.folder / "run.json"  # with the map of open rates, where this machine made the run
            full = read_json(own) if own.exists() else {}
            plain = {key: value for key, value in run.items() if key not in ("meta", "hash")}
            runs.append({**full, **plain, "gates": full.get("gates", run["gates"]), "folder": job.folder.name})
        write_results(folder / "results.json", stored[0][1]["meta"], runs)
    return list(written)
