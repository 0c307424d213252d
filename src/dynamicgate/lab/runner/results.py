"""Where the results of a paper run lie, and how they are read: one small JSON for each run, named by its hash."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dynamicgate.files import write_results
from dynamicgate.lab.runner.jobs import Job, Table

RESULTS = Path("experiments") / "results" / "paper"
WORK = Path("runs") / "paper"
QUICK = Path("runs") / "paper-quick"
SIZES = ("name", "train", "valid", "test", "features", "classes")
Run = dict[str, Any]
Runs = dict[tuple[str, str, str], list[Run]]
"""By table, kind and model, in the order of the seeds."""


def result_path(folder: Path, job: Job) -> Path:
    """The JSON of one run."""
    return folder / f"{job.name}.json"


def keep_result(folder: Path, job: Job, meta: dict[str, Any], run: Run) -> None:
    """Write the JSON of one run: all of it but the map of open rates, which is large and for the report."""
    gates = [{k: v for k, v in gate.items() if k != "open_by_class"} for gate in run.get("gates", [])]
    write_results(result_path(folder, job), meta, [{**run, "gates": gates}])


def read_results(folder: Path, jobs: Iterable[Job]) -> tuple[Runs, dict[str, Run]]:
    """The runs of these jobs that are there, each with `meta`, and for each table and kind what its data are.

    Other files in the folder (of seeds or settings that are no longer asked for) are left out.
    """
    runs: Runs = {}
    data: dict[str, Run] = {}
    for job in jobs:
        path = result_path(folder, job)
        if not path.exists():
            continue
        found = json.loads(path.read_text(encoding="utf-8"))
        (run,), meta = found["runs"], found["meta"]
        where = f"{job.table.name}/{job.recipe.kind}"
        first = data.setdefault(where, meta["data"])
        if any(first[key] != meta["data"][key] for key in SIZES):
            raise ValueError(
                f"the runs of {where} are on different data, {first} and {meta['data']}: delete those that are not "
                f"wanted in {folder / where} and run them again"
            )
        runs.setdefault((job.table.name, job.recipe.kind, job.model), []).append({**run, "meta": meta})
    return runs, data


def write_summary(work: Path, folder: Path, table: Table, jobs: Iterable[Job]) -> list[Path]:
    """A results.json for each recipe in its folder of runs, from which `dynamicgate report` makes a page."""
    written = []
    for recipe in table.recipes:
        mine = [job for job in jobs if job.table is table and job.recipe is recipe]
        found = [
            (job, json.loads(path.read_text(encoding="utf-8")))
            for job in mine
            if (path := result_path(folder, job)).exists()
        ]
        if not found:
            continue
        place = work / table.name / recipe.kind
        runs = []
        for job, content in found:
            own = work / job.name / "run.json"  # with the map of open rates, where this machine made the run
            full = json.loads(own.read_text(encoding="utf-8")) if own.exists() else {}
            runs.append({**full, **content["runs"][0], "gates": full.get("gates", content["runs"][0]["gates"])})
            runs[-1]["folder"] = Path(job.name).name
        write_results(place / "results.json", found[0][1]["meta"], runs)
        written.append(place)
    return written
