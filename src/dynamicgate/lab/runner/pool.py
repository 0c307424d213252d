"""Do the runs that are missing, side by side, and merge them into their tables.

Every run has a process with one thread, whatever the number of processes: so its result does not depend on what runs
beside it, and no core has to do two things at once. A finished run is found in its table, or in its own folder where
the call that made it was interrupted; an unfinished one goes on from its checkpoint.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from dynamicgate.files import environment
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner.jobs import Job, fewer_rows, load_tables
from dynamicgate.lab.runner.prepared import load_splits
from dynamicgate.lab.runner.results import collect, find_runs, keep_result, say_stale
from dynamicgate.lab.runner.step_time import relative_seconds

CLOCK_SECONDS = 3.0
CHECKPOINTS = ("last.safetensors", "best.safetensors")


@dataclass(frozen=True)
class Order:
    """A job in words that another process understands, and where everything is."""

    recipes: Path
    table: str
    kind: str
    model: str
    seed: int
    quick: bool
    device: str
    results: Path
    work: Path
    data_dir: Path | None
    command: str

    @property
    def job(self) -> Job:
        """What is to be run."""
        (table,) = load_tables(self.recipes, self.table)
        job = Job(table, table.recipe(self.kind), self.model, self.seed, self.quick, device=self.device)
        return replace(job, folder=self.work / job.name)


def run_jobs(
    jobs: Sequence[Job],
    *,
    recipes: Path,
    results: Path,
    work: Path,
    processes: int | None = None,
    device: str = "auto",
    data_dir: Path | None = None,
    command: str = "",
) -> int:
    """Do what is missing of `jobs` and say how far it is; returns how many runs were done."""
    collect(results, work, jobs)
    found, stale = find_runs(results, jobs)
    done = {job.name for job, _ in found}
    missing = [job for job in jobs if job.name not in done]
    if stale:
        print(f"{say_stale(stale)}; they are run again and replaced", file=sys.stderr, flush=True)
    processes = min(processes or available_cores(), max(1, len(missing)))
    print(f"{len(jobs)} runs, {len(jobs) - len(missing)} of them found in {results}", file=sys.stderr, flush=True)
    orders = [
        Order(
            recipes, job.table.name, job.recipe.kind, job.model, job.seed, job.quick, device, results.resolve(),
            work.resolve(), data_dir, command,
        )
        for job in missing
    ]  # fmt: skip
    if not orders:
        return 0
    progress = Progress(missing, processes)
    # spawn: a forked process would share torch's threads and the GPU with its parent
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=spawn, initializer=start_worker) as pool:
        try:
            for future in as_completed([pool.submit(work_off, order) for order in orders]):
                print(progress.line(*future.result()), file=sys.stderr, flush=True)
        except BaseException:  # an error, or Ctrl-C: what runs beside it is not waited for
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        finally:
            collect(results, work, jobs)
    return len(orders)


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker() -> None:
    """One thread, and the same result every time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; without it sums vary
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs time


def work_off(order: Order) -> tuple[Order, str, float]:
    """One run, from its data to its result."""
    started = time.monotonic()
    job = order.job
    splits = splits_of(order)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the budget was missed")  # the page has asked and reached
        run = job.recipe.train(job, splits)
    if job.recipe.step is not None:
        run = {**run, "seconds_relative": seconds_relative(job, splits)}
    meta = {**environment(order.command), "quick": order.quick, "data": sizes_of(splits)}
    keep_result(job, meta, run)
    for name in CHECKPOINTS:
        (job.folder / name).unlink(missing_ok=True)
    return order, outcome(run), time.monotonic() - started


def outcome(run: dict[str, Any]) -> str:
    """What a run came to, in a few words."""
    if "unreachable" in run:
        return "cannot be had at this budget"
    return f"{run['quality']['accuracy']:.2%}  MACs {run['macs']['relative']:.3f}"


def seconds_relative(job: Job, splits: Splits) -> float:
    """The time of a training step relative to that of the first model of the recipe."""
    assert job.recipe.step is not None
    dense = next(iter(job.recipe.models))
    if job.model == dense:
        return 1.0
    seconds = CLOCK_SECONDS / 10 if job.quick else CLOCK_SECONDS
    return relative_seconds(job.recipe.step(job, splits), job.recipe.step(job.of(dense), splits), seconds)


def sizes_of(splits: Splits) -> dict[str, Any]:
    """What tells a reader, and the next run, which data these were."""
    info = splits.info()
    return {key: info[key] for key in ("name", "train", "valid", "test", "features", "classes", "majority")}


def splits_of(order: Order) -> Splits:
    """The data of a run; several runs of a seed read them once."""
    return _splits(order.recipes, order.table, order.kind, order.seed, order.quick, order.data_dir)


@lru_cache(maxsize=2)
def _splits(recipes: Path, table: str, kind: str, seed: int, quick: bool, data_dir: Path | None) -> Splits:
    recipe = load_tables(recipes, table)[0].recipe(kind)
    splits = load_splits(recipe, seed, data_dir)
    for change in recipe.changes:
        splits = change.apply(splits)
    return fewer_rows(splits, recipe.quick_rows) if quick else splits


class Progress:
    """What is done, and how long the rest will take: judged by the runs of the same recipe, else by all."""

    def __init__(self, jobs: Iterable[Job], processes: int) -> None:
        """Nothing done yet."""
        self.left: list[tuple[str, str]] = [(job.table.name, job.recipe.kind) for job in jobs]
        self.total, self.processes = len(self.left), processes
        self.seconds: dict[tuple[str, str], list[float]] = {}

    def line(self, order: Order, said: str, seconds: float) -> str:
        """One more run is done."""
        key = (order.table, order.kind)
        self.left.remove(key)
        self.seconds.setdefault(key, []).append(seconds)
        done = self.total - len(self.left)
        name = f"{order.table} {order.kind}  {order.model} seed {order.seed}"
        rest = f"  about {spoken(self.remaining())} left" if self.left else ""
        return f"[{done}/{self.total}] {name}  {said}  {seconds:.0f} s{rest}"

    def remaining(self) -> float:
        """Seconds until the end."""
        means = {key: sum(seen) / len(seen) for key, seen in self.seconds.items()}
        usual = sum(means.values()) / len(means)
        return sum(means.get(key, usual) for key in self.left) / self.processes


def spoken(seconds: float) -> str:
    """A duration as one says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
