"""Run tasks in parallel, each in a process with one thread, and the jobs of an experiment with it.

One thread a process, whatever the number of processes: the result of a run does not depend on what runs beside it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dynamicgate.files import environment
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner.jobs import Job
from dynamicgate.lab.runner.prepared import load_splits
from dynamicgate.lab.runner.results import FINISHED, collect, find_runs, say_stale, write_finished
from dynamicgate.lab.runner.scheduling import Engine, R, T, as_they_finish
from dynamicgate.lab.runner.step_time import relative_seconds

STEP_SECONDS = 3.0  # of timing training steps
CHECKPOINTS = ("last.safetensors", "best.safetensors")


@dataclass(frozen=True)
class ProcessPool:
    """The engine that needs nothing else: processes of this machine; None is as many as it has cores."""

    processes: int | None = None

    def __post_init__(self) -> None:
        if self.processes is not None and self.processes < 1:
            raise ValueError(f"at least one job at a time is needed, received {self.processes}")

    @property
    def workers(self) -> int:
        """How many processes run at once."""
        return self.processes or available_cores()

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        more: Callable[[T], Sequence[T]] | None = None,
        shared: Path | None = None,
    ) -> Iterator[tuple[T, R]]:
        """`run_parallel`; every process of a machine sees the same folders."""
        return run_parallel(task, items, processes=self.processes, more=more)


def run_parallel(
    task: Callable[[T], R],
    items: Sequence[T],
    *,
    processes: int | None = None,
    more: Callable[[T], Sequence[T]] | None = None,
) -> Iterator[tuple[T, R]]:
    """Each item with what `task` returns for it, as they finish; the first error ends all.

    Every process has one thread. Its task and items are copied to it; functions are found by their import path.
    None is as many processes as there are cores. `more` is asked for further items after each that has finished; they
    are taken first, so that what was begun ends before anything else begins.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"at least one process is needed, received {processes}")
    if not items:
        return
    # spawn: a forked process would share torch's threads and the GPU with its parent
    spawn = multiprocessing.get_context("spawn")
    workers = processes or available_cores()
    if more is None:
        workers = min(workers, len(items))
    with ProcessPoolExecutor(workers, mp_context=spawn, initializer=start_worker) as pool:
        try:
            for item, future in as_they_finish(
                items,
                start=lambda item: pool.submit(task, item),
                wait=lambda futures: wait(futures, return_when=FIRST_COMPLETED).done,
                at_once=lambda: workers + 1,  # one more than can run: no process waits for this one
                more=more,
            ):
                yield item, future.result()
        except BaseException:  # an error, or Ctrl-C: do not wait for the other processes
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def available_cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def start_worker() -> None:
    """`one_thread`, and an end when the process that asked for results ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    one_thread()


def one_thread() -> None:
    """Let this process compute with one thread, and the same result every time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts; without it sums vary
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=torch.cuda.is_available())
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined] # costs time


def _end_with(parent: Any) -> None:
    """A process whose parent was killed would otherwise wait for work for ever, with its memory and its place on a
    GPU."""
    parent.join()
    os._exit(1)


def run_jobs(
    jobs: Sequence[Job],
    results: Path,
    *,
    processes: int | None = None,
    data_dir: Path | None = None,
    command: str = "",
    more: Callable[[Job], Sequence[Job]] | None = None,
    engine: Engine | None = None,
) -> int:
    """Run the jobs whose runs are missing from the tables in `results`, and collect them there; returns how many ran.

    engine: what runs them; None is a pool of `processes` on this machine.
    more: asked after each finished job for further ones, whose runs must be missing from the tables.

    A finished run is found in its table, or in its own folder where the call that made it was interrupted; an
    unfinished one continues from its checkpoint. A stale one is run again and replaced.
    """
    if engine is not None and processes is not None:
        raise ValueError(f"an engine knows how many jobs it runs at once: leave out processes={processes}")
    chosen = engine or ProcessPool(processes)
    jobs = with_what_follows(jobs, more)
    collect(results, jobs)
    found, stale = find_runs(results, jobs)
    done = {job.folder for job, _ in found}
    missing = [job for job in jobs if job.folder not in done]
    if stale:
        print(f"{say_stale(stale)}; they are run again and replaced", file=sys.stderr, flush=True)
    print(f"{len(jobs)} runs, {len(found)} of them found in {results}", file=sys.stderr, flush=True)
    progress = Progress(missing, chosen.workers if more else min(chosen.workers, max(1, len(missing))))
    task = partial(run_job, data_dir=data_dir, command=command)
    asked = list(jobs)

    def ask_for_more(job: Job) -> Sequence[Job]:
        following = with_what_follows(more(job) if more else (), more)
        asked.extend(following)
        further = [one for one in following if not (one.folder / FINISHED).exists()]
        progress.add(further)
        return further

    try:
        work = jobs[0].work if jobs else None
        with termination_as_interruption():
            for job, outcome in chosen.run(task, missing, more=ask_for_more if more else None, shared=work):
                print(progress.line(job, outcome), file=sys.stderr, flush=True)
    finally:
        collect(results, asked)
    return progress.total


@contextmanager
def termination_as_interruption() -> Iterator[None]:
    """While entered, SIGTERM acts like Ctrl-C, so that what is finished is collected. A handler of the caller and other
    threads are left alone."""
    own = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def with_what_follows(jobs: Sequence[Job], more: Callable[[Job], Sequence[Job]] | None) -> list[Job]:
    """These jobs and the further ones that those ask for which an interrupted call has finished in their folders."""
    found = list(jobs)
    for job in found:  # grows meanwhile
        if more and (job.folder / FINISHED).exists():
            found.extend(more(job))
    return found


@dataclass(frozen=True)
class Outcome:
    """What a run came to, in a few words, and how long it took."""

    text: str
    seconds: float


def run_job(job: Job, *, data_dir: Path | None, command: str) -> Outcome:
    """One run, from its data to its finished file."""
    started = time.monotonic()
    splits = (job.table.load or load_splits)(job, data_dir)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the budget was missed")  # pages show what was asked and reached
        try:
            run = job.table.train(job, splits)
        except (ValueError, RuntimeError) as error:  # such as a loss that became NaN: of which of many runs?
            kind = ValueError if isinstance(error, ValueError) else RuntimeError
            raise kind(f"{job.table.name}, {job.model}, seed {job.seed}: {error}") from error
    if job.table.step is not None:
        run = {**run, "seconds_relative": seconds_relative(job, splits)}
    meta = {**environment(command), "quick": job.quick, "data": sizes_of(splits)}
    write_finished(job, meta, run)
    for name in CHECKPOINTS:
        (job.folder / name).unlink(missing_ok=True)
    return Outcome(describe(run), time.monotonic() - started)


def describe(run: dict[str, Any]) -> str:
    """The result of a run in a few words."""
    if "unreachable" in run:
        return "not possible at this budget"
    if "diverged" in run:
        return f"diverged: {run['diverged']}"
    quality = run["quality"]
    if "accuracy" in quality:
        text = f"{quality['accuracy']:.2%}"
    elif "cosine" in quality:
        text = f"cosine {quality['cosine']:.4f}"
    else:
        text = f"{quality['bits_per_byte']:.4f} bits per byte"
    return f"{text}  MACs {run['macs']['relative']:.3f}"


def seconds_relative(job: Job, splits: Splits) -> float:
    """The time of a training step relative to that of the first model of the table."""
    assert job.table.step is not None
    first = next(iter(job.table.models))
    if job.model == first:
        return 1.0
    seconds = STEP_SECONDS / 10 if job.quick else STEP_SECONDS
    return relative_seconds(job.table.step(job, splits), job.table.step(job.of(first), splits), seconds)


def sizes_of(splits: Any) -> dict[str, Any]:
    """What tells a reader, and the next run, which data these were."""
    if not isinstance(splits, Splits):
        return splits.sizes()
    info = splits.info()
    return {key: info[key] for key in ("name", "train", "valid", "test", "features", "classes", "majority")}


class Progress:
    """How many runs are done, and how long the rest will take: estimated from runs of the same table, else from all."""

    def __init__(self, jobs: Iterable[Job], processes: int) -> None:
        """Nothing done yet."""
        self.left: list[str] = []
        self.total, self.processes = 0, processes
        self.seconds: dict[str, list[float]] = {}
        self.add(jobs)

    def add(self, jobs: Iterable[Job]) -> None:
        """More to do."""
        names = [job.table.name for job in jobs]
        self.left += names
        self.total += len(names)

    def line(self, job: Job, outcome: Outcome) -> str:
        """One more run is done."""
        table = job.table.name
        self.left.remove(table)
        self.seconds.setdefault(table, []).append(outcome.seconds)
        done = self.total - len(self.left)
        rest = f"  about {format_duration(self.remaining())} left" if self.left else ""
        name = f"{table}  {job.model} seed {job.seed}"
        return f"[{done}/{self.total}] {name}  {outcome.text}  {outcome.seconds:.0f} s{rest}"

    def remaining(self) -> float:
        """Seconds until the end."""
        means = {table: sum(times) / len(times) for table, times in self.seconds.items()}
        overall = sum(means.values()) / len(means)
        return sum(means.get(table, overall) for table in self.left) / self.processes


def format_duration(seconds: float) -> str:
    """A duration in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
