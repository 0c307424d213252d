"""Time models over the stream of test inputs: one thread, one process, in turn, gate and every stage inside.

Every model is compiled on validation rows. Then all of them answer the test rows in pieces, one model after the other
within each piece, so that what disturbs the machine disturbs all. A call at batch 1 is timed by itself.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.files import environment
from dynamicgate.lab.result_file import read_runs, write_runs
from dynamicgate.lab.runner import Experiment, Job
from dynamicgate.lab.runner.prepared import load_splits
from dynamicgate.lab.runner.results import read_results
from dynamicgate.nn import GatedMLP
from experiments.stages.tables import TILES

MODEL = "model.safetensors"
BATCHES = (1, 256)
PIECE, PASSES, EXAMPLES = 512, 3, 2048
DENSE_PLAN, DENSE_TORCH = "dense, our plan", "dense, torch.compile"
KEY = ("data", "model")
Call = Callable[[Tensor], Tensor]


def latency_path(experiment: Experiment) -> Path:
    """The file with the times of all datasets."""
    return experiment.results / "latency.jsonl"


@torch.no_grad()
def time_dataset(experiment: Experiment, name: str, *, data_dir: Path | None) -> None:
    """Time the models of a dataset that were trained here, and the dense network in both of its forms."""
    jobs = timed_jobs(experiment, name)
    if not jobs:
        raise ValueError(f"no model of {name} was trained here: run `python -m experiments.stages {name}-timed` first")
    splits = load_splits(jobs[0], data_dir)
    example = next(iter(splits.valid.batches(EXAMPLES)))[0]
    stream = torch.cat([x for x, _ in splits.test.batches(EXAMPLES)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        calls = {job.model: compiled(dg.load(job.folder / MODEL), example) for job in jobs}
        hidden = jobs[0].settings["hidden"]
        dense = GatedMLP((splits.train.features, *hidden, splits.classes), normalize=None).eval()
        calls[DENSE_PLAN] = compiled(dense, example)
        calls[DENSE_TORCH] = {batch: torch.compile(dense, dynamic=False) for batch in BATCHES}
        batches = [batch for batch in BATCHES if batch <= len(stream)]
        found = {batch: time_stream({name: c[batch] for name, c in calls.items()}, stream, batch) for batch in batches}
    finally:
        torch.set_num_threads(threads)
    quality, hashes = mean_quality(experiment, jobs), {job.model: job.hash for job in jobs}
    meta = environment(f"python -m experiments.stages latency {name}")
    rows = [
        {
            "data": name,
            "model": model,
            "hash": hashes.get(model) or hash_of(name, model),
            **quality.get(model, {}),
            "batches": {str(batch): found[batch][model] for batch in batches},
            "threads": 1,
            "rows": len(stream),
            "meta": meta,
        }
        for model in calls
    ]
    path = latency_path(experiment)
    kept = [row for row in read_runs(path) if row["data"] != name]
    write_runs(path, [*kept, *rows], key=KEY)
    for row in rows:
        times = "".join(f"  batch {b}: {t['mean_us']:.2f} us, p99 {t['p99_us']:.2f}" for b, t in row["batches"].items())
        print(f"{name}  {row['model']}{times}", flush=True)


def hash_of(*words: str) -> str:
    """Tells the dense networks apart: they are not trained, because their weights do not matter for their time."""
    return hashlib.blake2b(" ".join(words).encode(), digest_size=4).hexdigest()


def timed_jobs(experiment: Experiment, name: str) -> list[Job]:
    """The first seed of every model with one network that was trained here."""
    tables = [table for table in experiment.tables if table.name in (name, f"{name}-{TILES}", f"{name}-timed")]
    jobs = experiment.jobs(tables, seeds=1)
    return [job for job in jobs if (job.folder / MODEL).is_file()]


def compiled(model: nn.Module, example: Tensor) -> dict[int, Call]:
    """By batch size the fastest verified plan."""
    plan = dg.compile(model, example=example, batches=BATCHES, threads=1, seconds=2.5)
    return dict.fromkeys(BATCHES, plan)


def time_stream(
    calls: dict[str, Call], stream: Tensor, batch: int, *, passes: int = PASSES
) -> dict[str, dict[str, float]]:
    """Microseconds of a call of each model: the median over pieces of the mean, and the 99th percentile of all."""
    pieces = [list(piece.split(batch)) for piece in stream.split(max(PIECE, batch))]
    pieces = [[x for x in piece if len(x) == batch] for piece in pieces]
    for call in calls.values():
        for x in pieces[0]:
            call(x)
    means: dict[str, list[float]] = {name: [] for name in calls}
    every: dict[str, list[int]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(passes):
        for at, piece in enumerate(pieces):
            if not piece:
                continue
            shift = (turn + at) % len(names)
            for name in names[shift:] + names[:shift]:
                times = time_calls(calls[name], piece)
                means[name].append(fmean(times))
                every[name] += times
    return {
        name: {
            "mean_us": median(means[name]) / 1000.0,
            "p99_us": sorted(every[name])[int(0.99 * len(every[name]))] / 1000.0,
        }
        for name in calls
    }


def time_calls(call: Call, inputs: list[Tensor]) -> list[int]:
    """Nanoseconds of each call; the first one warms the caches up again after another model and does not count."""
    clock = time.perf_counter_ns
    call(inputs[0])
    times = []
    for x in inputs:
        start = clock()
        call(x)
        times.append(clock() - start)
    return times


def mean_quality(experiment: Experiment, jobs: list[Job]) -> dict[str, dict[str, Any]]:
    """What the seeds of each model reach on test rows on average, and at what cost."""
    tables = {job.table.name: job.table for job in jobs}
    runs, _ = read_results(experiment.results, experiment.jobs(tables.values()))
    return {
        model: {
            "accuracy": fmean(run["quality"]["accuracy"] for run in rows),
            "relative": fmean(run["macs"]["relative"] for run in rows),
            "seeds": len(rows),
        }
        for (_, model), rows in runs.items()
        if rows and all("unreachable" not in run for run in rows)
    }
