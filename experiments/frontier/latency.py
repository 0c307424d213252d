"""Latency of trained models: compiled, with one thread, relative to the dense network of their dataset and seed.

Only the first seed is timed: seeds differ in what they learn, hardly in how long they take. Test rows only serve as
something to compute on.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from dynamicgate.files import environment
from dynamicgate.lab.result_file import Run, read_runs, write_runs
from dynamicgate.lab.runner import Experiment, Job, run_parallel
from dynamicgate.lab.runner.prepared import load_splits
from dynamicgate.lab.runner.results import StaleRunsWarning, say_stale
from experiments.frontier.comparisons import BATCHES, Entry, Latencies, read_entries
from experiments.frontier.datasets import DATASETS, method_of
from experiments.latency import MAX_ROWS, time_model

MODEL = "model.safetensors"
KEY = ("data", "model", "seed")


def latency_path(experiment: Experiment) -> Path:
    """The file with the times of all datasets."""
    return experiment.results / "latency.jsonl"


def read_latencies(experiment: Experiment) -> dict[str, Latencies]:
    """The times of every dataset by method and budget. Stale ones, of models that are now asked for with other
    settings, are left out with a warning."""
    asked = {(job.table.name, job.model, job.seed): job for job in timed_jobs(experiment)}
    found: dict[str, Latencies] = {name: {} for name in DATASETS}
    stale = []
    for row in read_runs(latency_path(experiment)):
        job = asked[row["data"], row["model"], row["seed"]]
        if row["hash"] == job.hash:
            found[row["data"]][method_of(row["model"])] = row
        else:
            stale.append(job)
    if stale:
        warnings.warn(f"latency: {say_stale(stale)}; they are left out", StaleRunsWarning, stacklevel=2)
    return found


def timed_jobs(experiment: Experiment, name: str | None = None) -> list[Job]:
    """The jobs of a dataset (None: of all) whose models are timed: those at a budget, of the first seed."""
    tables = [experiment.table(dataset) for dataset in ([name] if name else DATASETS)]
    return [job for job in experiment.jobs(tables, seeds=1) if method_of(job.model)[1] is not None]


def time_dataset(
    experiment: Experiment,
    name: str,
    *,
    wanted: Callable[[Job], bool],
    seconds: float,
    repeats: int = 3,
    data_dir: Path | None = None,
) -> None:
    """Time the wanted models of a dataset that are trained and not timed yet; the file is written after each."""
    entries, _ = read_entries(experiment, name)
    known = read_latencies(experiment)[name]
    jobs = [job for job in timed_jobs(experiment, name) if wanted(job)]
    missing = [job for job in jobs if method_of(job.model) not in known]
    ready = [job for job in missing if method_of(job.model) in entries and is_trained(job)]
    timed, skipped = len(jobs) - len(missing), len(missing) - len(ready)
    print(f"{name}: {len(jobs)} models, {timed} timed before, {skipped} skipped: not trained here", flush=True)
    task = partial(time_job, seconds=seconds, repeats=repeats, data_dir=data_dir)
    path = latency_path(experiment)
    for done, (job, batches) in enumerate(run_parallel(task, ready, processes=1), start=1):
        row: Run = {
            "data": name, "model": job.model, "seed": job.seed, "hash": job.hash, "batches": batches["batches"],
            **mean_quality(entries[method_of(job.model)]), "meta": batches["meta"],
        }  # fmt: skip
        rows = {tuple(row[key] for key in KEY): row for row in [*read_runs(path), row]}
        write_runs(path, rows.values(), key=KEY)
        times = "".join(f"  batch {b} {x['ours_us']:,.1f} us, {x['ratio']:.3f}" for b, x in row["batches"].items())
        print(f"[{done}/{len(ready)}] {name}  {job.model}{times}", flush=True)


def is_trained(job: Job) -> bool:
    """Whether the model and the dense network it is compared with are on this machine."""
    return all((one.folder / MODEL).is_file() for one in (job, job.of("dense")))


def time_job(job: Job, *, seconds: float, repeats: int, data_dir: Path | None) -> dict[str, Any]:
    """By batch size the times and their ratio, and what each layer runs as: `eager` where nothing was compiled.

    The model is compiled anew every time, and the median ratio counts: where the packed weights come to lie in memory,
    and what a short measurement mistakes for the fastest plan, change the time of a small model by a third.
    """
    rows = next(iter(load_splits(job, data_dir).test.batches(MAX_ROWS)))[0]
    dense, model = (one.folder / MODEL for one in (job.of("dense"), job))
    tries = [time_model(dense, model, rows, seconds, BATCHES)[0] for _ in range(repeats)]
    found = {}
    for batch in map(str, BATCHES):
        times = sorted((one[batch] for one in tries), key=lambda one: one["ratio"])[(repeats - 1) // 2]
        choices = [layer["choice"] for layer in times["layers"]] or ["eager"]
        found[batch] = {**{key: times[key] for key in ("ratio", "dense_us", "ours_us")}, "choices": choices}
    return {"batches": found, "meta": environment(f"python -m experiments.frontier latency {job.table.name}")}


def mean_quality(entry: Entry) -> dict[str, float]:
    """What the seeds reach on average, and at what cost."""
    return {"relative": fmean(entry.relative), "accuracy": fmean(entry.accuracy)}
