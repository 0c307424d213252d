"""Finished runs: a file for each where it was made, and the committed table that `collect` merges them into."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynamicgate.files import write_results, write_text
from dynamicgate.lab.result_file import Run, read_runs, write_runs
from dynamicgate.lab.runner.jobs import Job, Table

RESULTS = Path("experiments") / "results" / "paper"
WORK = Path("runs") / "paper"
QUICK = Path("runs") / "paper-quick"
FINISHED = "result.json"
SIZES = ("name", "train", "valid", "test", "features", "classes")
Runs = dict[tuple[str, str, str], list[Run]]
"""By table, kind and model, in the order of the seeds."""


class StaleRunsWarning(UserWarning):
    """A results table holds runs that were made with other settings than the code now asks for."""


def table_path(results: Path, table: str) -> Path:
    """The file of a table in a results folder."""
    return results / f"{table}.jsonl"


def keep_result(job: Job, meta: dict[str, Any], run: Run) -> None:
    """Write the result of a finished run into its folder: all of it but the map of open rates, which is large and only
    for the report."""
    gates = [{k: v for k, v in gate.items() if k != "open_by_class"} for gate in run.get("gates", [])]
    write_text(job.folder / FINISHED, json.dumps({**run, "gates": gates, "hash": job.hash, "meta": meta}))


def collect(results: Path, work: Path, jobs: Iterable[Job]) -> int:
    """Merge what is finished under `work` into the tables; returns how many runs are new to them.

    A run replaces the one of the same model and seed, all others are kept. Each table is written in one move.
    """
    finished: dict[str, list[Run]] = {}
    for job in jobs:
        path = work / job.name / FINISHED
        if path.exists():
            finished.setdefault(job.table_name, []).append(json.loads(path.read_text(encoding="utf-8")))
    new = 0
    for table, runs in finished.items():
        path = table_path(results, table)
        merged = {(run["model"], run["seed"]): run for run in read_runs(path)}
        fresh = {(run["model"], run["seed"]): run for run in runs}
        changed = [key for key, run in fresh.items() if merged.get(key) != run]
        if changed:
            write_runs(path, (merged | fresh).values())
        new += len(changed)
    return new


def find_runs(results: Path, jobs: Iterable[Job]) -> tuple[list[tuple[Job, Run]], list[Job]]:
    """The jobs whose runs are in the tables, with their runs, and the jobs whose model and seed is there with another
    hash: stale, made with other settings than are asked for now. Every table is read once."""
    tables: dict[str, dict[tuple[str, int], Run]] = {}
    found, stale = [], []
    for job in jobs:
        name = job.table_name
        if name not in tables:
            tables[name] = {(run["model"], run["seed"]): run for run in read_runs(table_path(results, name))}
        run = tables[name].get((job.model, job.seed))
        if run is not None:
            if run["hash"] == job.hash:
                found.append((job, run))
            else:
                stale.append(job)
    return found, stale


def say_stale(stale: Iterable[Job]) -> str:
    """Which runs are stale."""
    names = [f"{job.table_name} {job.model} seed {job.seed}" for job in stale]
    return f"{len(names)} stored runs are stale, made with other settings than the code asks for: {', '.join(names)}"


def read_results(results: Path, jobs: Iterable[Job]) -> tuple[Runs, dict[str, Run]]:
    """The runs of these jobs that are there, each with `meta`, and for each table and kind what its data are.

    Stale runs are left out, with a `StaleRunsWarning`.
    """
    found, stale = find_runs(results, jobs)
    if stale:
        warnings.warn(f"{say_stale(stale)}; they are left out, run them again", StaleRunsWarning, stacklevel=2)
    runs: Runs = {}
    data: dict[str, Run] = {}
    for job, run in found:
        where = f"{job.table.name}/{job.recipe.kind}"
        first, own = data.setdefault(where, run["meta"]["data"]), run["meta"]["data"]
        if any(first[key] != own[key] for key in SIZES):
            raise ValueError(
                f"the runs of {where} are on different data, {first} and {own}: delete those that are not wanted in "
                f"{table_path(results, job.table_name)} and run them again"
            )
        runs.setdefault((job.table.name, job.recipe.kind, job.model), []).append(run)
    return runs, data


def write_summary(work: Path, folder: Path, table: Table, jobs: Iterable[Job]) -> list[Path]:
    """A results.json for each recipe in its folder of runs, from which `dynamicgate report` makes a page."""
    written = []
    for recipe in table.recipes:
        found, _ = find_runs(folder, [job for job in jobs if job.table is table and job.recipe is recipe])
        if not found:
            continue
        place = work / table.name / recipe.kind
        runs = []
        for job, run in found:
            own = work / job.name / "run.json"  # with the map of open rates, where this machine made the run
            full = json.loads(own.read_text(encoding="utf-8")) if own.exists() else {}
            plain = {key: value for key, value in run.items() if key not in ("meta", "hash")}
            runs.append({**full, **plain, "gates": full.get("gates", run["gates"]), "folder": Path(job.name).name})
        write_results(place / "results.json", found[0][1]["meta"], runs)
        written.append(place)
    return written
