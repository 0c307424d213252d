"""Latency of trained models: compiled, with one thread, all models of a dataset in turn over its test inputs.

Only the first seed is timed: seeds differ in what they learn, hardly in how long they take. The dense network runs
three ways: eager, by `torch.compile`, and as our own plan. Test rows only serve as something to compute on.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import geometric_mean
from typing import NamedTuple

import torch

import dynamicgate as dg
from dynamicgate.files import environment
from dynamicgate.lab.result_file import Run, read_runs, write_runs
from dynamicgate.lab.runner import Experiment, Job
from dynamicgate.lab.runner.prepared import load_splits
from dynamicgate.lab.runner.results import StaleRunsWarning, say_stale
from experiments.frontier.datasets import DATASETS, method_of
from experiments.frontier.methods import (
    BUDGETS,
    DENSE,
    OURS,
    OURS_IN_TILES,
    PRUNED_IN_TILES,
    UNGATED,
    UNGATED_IN_TILES,
    WITHOUT_GATES,
)
from experiments.stages.latency import (
    BATCHES,
    DENSE_PLAN,
    DENSE_TORCH,
    EXAMPLES,
    KEY,
    MODEL,
    PASSES,
    PIECE,
    Call,
    compiled,
    hash_of,
    time_stream,
)

DENSE_EAGER = "dense, eager"
DENSE_WAYS = (DENSE_EAGER, DENSE_TORCH, DENSE_PLAN)
TIMED = ("small", "gate", "pruned", UNGATED, OURS, PRUNED_IN_TILES, UNGATED_IN_TILES, OURS_IN_TILES)
LEAST_PIECES = 60  # of the stream, that each model answers
MOST_SLOWER = 1.03  # of a gated model, relative to its twin without gates
Latencies = Mapping[str, Run]
"""The times of the models of one dataset, and of the dense network in its three ways."""


class Twins(NamedTuple):
    """The latency of a gated model relative to its twin without gates."""

    name: str
    method: str
    budget: float
    batch: int
    ratio: float


def latency_path(experiment: Experiment) -> Path:
    """The file with the times of all datasets."""
    return experiment.results / "latency.jsonl"


def timed_jobs(experiment: Experiment, name: str) -> list[Job]:
    """The dense network and the models of the first seed that are timed."""
    jobs = experiment.jobs([experiment.table(name)], seeds=1)
    return [job for job in jobs if method_of(job.model)[0] in (DENSE, *TIMED)]


def read_latencies(experiment: Experiment) -> dict[str, Latencies]:
    """The times of every dataset. Stale ones, of models that are now asked for with other settings, are left out with a
    warning."""
    asked = {(name, job.model): job for name in DATASETS for job in timed_jobs(experiment, name)}
    found: dict[str, dict[str, Run]] = {name: {} for name in DATASETS}
    stale = []
    for row in read_runs(latency_path(experiment)):
        job = asked.get((row["data"], row["model"]))
        if row["model"] in DENSE_WAYS or (job and row["hash"] == job.hash):
            found[row["data"]][row["model"]] = row
        elif job:
            stale.append(job)
    if stale:
        warnings.warn(f"latency: {say_stale(stale)}; they are left out", StaleRunsWarning, stacklevel=2)
    return dict(found)


@torch.no_grad()
def time_dataset(
    experiment: Experiment, name: str, *, wanted: Callable[[Job], bool], data_dir: Path | None = None
) -> None:
    """Time the models of a dataset that were trained here, all in one go, so that they can be compared."""
    jobs = [job for job in timed_jobs(experiment, name) if (job.folder / MODEL).is_file()]
    dense = next((job for job in jobs if job.model == DENSE), None)
    jobs = [job for job in jobs if job.model != DENSE and wanted(job)]
    if dense is None or not jobs:
        print(f"{name}: nothing to time, its models were not trained here", flush=True)
        return
    splits = load_splits(dense, data_dir)
    example = next(iter(splits.valid.batches(EXAMPLES)))[0]
    stream = torch.cat([x for x, _ in splits.test.batches(EXAMPLES)])
    batches = [batch for batch in BATCHES if batch <= len(stream)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls: dict[str, dict[int, Call]] = {job.model: compiled(dg.load(job.folder / MODEL), example) for job in jobs}
        plain = dg.load(dense.folder / MODEL).eval()
        calls[DENSE_EAGER] = dict.fromkeys(BATCHES, plain)
        calls[DENSE_TORCH] = {batch: torch.compile(plain, dynamic=False) for batch in BATCHES}
        calls[DENSE_PLAN] = compiled(plain, example)
        passes = max(
            PASSES, math.ceil(LEAST_PIECES * PIECE / len(stream))
        )  # few pieces would leave the median to noise
        found = {
            batch: time_stream({model: by[batch] for model, by in calls.items()}, stream, batch, passes=passes)
            for batch in batches
        }
    finally:
        torch.set_num_threads(threads)
    hashes, meta = {job.model: job.hash for job in jobs}, environment(f"python -m experiments.frontier latency {name}")
    rows: list[Run] = [
        {
            "data": name, "model": model, "hash": hashes.get(model) or hash_of(name, model),
            "batches": {str(batch): found[batch][model] for batch in batches}, "threads": 1, "rows": len(stream),
            "meta": meta,
        }
        for model in calls
    ]  # fmt: skip
    path = latency_path(experiment)
    write_runs(path, [*(row for row in read_runs(path) if row["data"] != name), *rows], key=KEY)
    for row in rows:
        times = "".join(f"  batch {batch}: {t['mean_us']:.2f} us" for batch, t in row["batches"].items())
        print(f"{name}  {row['model']}{times}", flush=True)


def microseconds(latencies: Latencies, model: str, batch: int) -> float | None:
    """Mean time of a call of a model."""
    if model not in latencies or str(batch) not in latencies[model]["batches"]:
        return None
    return float(latencies[model]["batches"][str(batch)]["mean_us"])


def rival_of(latencies: Latencies, batch: int) -> tuple[str, float] | None:
    """The faster of the two compiled forms of the dense network, and its time."""
    times = {way: t for way in (DENSE_TORCH, DENSE_PLAN) if (t := microseconds(latencies, way, batch))}
    return min(times.items(), key=lambda item: item[1]) if times else None


def twins(found: Mapping[str, Latencies]) -> list[Twins]:
    """Every gated model that was timed beside its twin without gates."""
    rows = []
    for name, latencies in found.items():
        for method, without in WITHOUT_GATES.items():
            for budget in BUDGETS:
                for batch in BATCHES:
                    ours = microseconds(latencies, f"{method} {budget:g}", batch)
                    theirs = microseconds(latencies, f"{without} {budget:g}", batch)
                    if ours and theirs:
                        rows.append(Twins(name, method, budget, batch, ours / theirs))
    return rows


def refused(latencies: Latencies) -> set[tuple[str, float]]:
    """By method and budget the gated models of a dataset that are slower than their twins at some batch size."""
    return {(row.method, row.budget) for row in twins({"": latencies}) if row.ratio > MOST_SLOWER}


def mean_ratio(rows: list[Twins]) -> float:
    """The geometric mean of ratios."""
    return geometric_mean(row.ratio for row in rows)


def relative_times(latencies: Latencies, model: str) -> dict[int, float]:
    """The time of a model relative to the dense rival, by batch size; empty where it was not timed."""
    found = {}
    for batch in BATCHES:
        own, rival = microseconds(latencies, model, batch), rival_of(latencies, batch)
        if own and rival:
            found[batch] = own / rival[1]
    return found
