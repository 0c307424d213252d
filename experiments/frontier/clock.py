"""Trained models on the clock: compiled, with one thread, beside the dense network of their data and seed.

Only the first seed is timed: seeds differ in what they learn, hardly in how long they take. Test rows are no more than
something to compute on here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from dynamicgate.files import environment, write_results
from dynamicgate.lab.runner import Job, jobs_of, load_tables
from dynamicgate.lab.runner.jobs import load_module
from dynamicgate.lab.runner.pool import Order, splits_of

from .cells import BATCHES, Cell, clock_path, method_of, read_cells, read_clock
from .sets import AT_A_BUDGET, BUDGETS

FOLDER = Path(__file__).resolve().parent
LATENCY = load_module(FOLDER.parent, "latency")
MODEL = "model.safetensors"


def clock(
    name: str,
    results: Path,
    work: Path,
    *,
    wanted: Callable[[Job], bool],
    seconds: float,
    repeats: int = 3,
    quick: bool = False,
    data_dir: Path | None = None,
) -> None:
    """Time the wanted models of a data set that are trained and not timed yet; the file is written after each."""
    torch.set_num_threads(1)
    cells, _ = read_cells(FOLDER, results, name, quick=quick)
    found = read_clock(FOLDER, results, name, quick=quick)
    jobs = [job for job in jobs_of(load_tables(FOLDER, name), seeds=1, quick=quick) if wanted(job)]
    jobs = [job for job in jobs if method_of(job.model)[1] is not None]
    missing = [job for job in jobs if method_of(job.model) not in found]
    ready = [job for job in missing if method_of(job.model) in cells and can_be_timed(job, work)]
    known, skipped = len(jobs) - len(missing), len(missing) - len(ready)
    print(
        f"{name}: {len(jobs)} models, {known} timed before, {skipped} skipped for want of a trained model", flush=True
    )
    for done, job in enumerate(ready, start=1):
        key = method_of(job.model)
        timed = batches(job, work, test_rows(job, results, work, data_dir), seconds, repeats)
        found[key] = {"method": key[0], "budget": key[1], "hash": job.hash, "seed": job.seed, "batches": timed}
        rows = [
            {**found[method, budget], **quality(cells[method, budget])}
            for method in AT_A_BUDGET
            for budget in BUDGETS
            if (method, budget) in found and (method, budget) in cells
        ]
        write_results(clock_path(results, name), environment(f"python experiments/frontier clock {name}"), rows)
        told = "".join(f"  batch {batch} {x['ours_us']:,.1f} us, {x['ratio']:.3f}" for batch, x in timed.items())
        print(f"[{done}/{len(ready)}] {name}  {job.model}{told}", flush=True)


def can_be_timed(job: Job, work: Path) -> bool:
    """Whether the model and the dense network it is compared with lie on this machine."""
    return all((work / one.name / MODEL).is_file() for one in (job, job.of("dense")))


def test_rows(job: Job, results: Path, work: Path, data_dir: Path | None) -> torch.Tensor:
    """Inputs to time on."""
    order = Order(
        FOLDER, job.table.name, job.recipe.kind, job.model, job.seed, job.quick, "cpu", results, work, data_dir, ""
    )
    return next(iter(splits_of(order).test.batches(LATENCY.MOST_ROWS)))[0]


def batches(job: Job, work: Path, rows: torch.Tensor, seconds: float, repeats: int) -> dict[str, dict[str, Any]]:
    """By batch size the times and their ratio, and what each layer runs as: `eager` where nothing was compiled.

    The model is compiled anew every time, and the median ratio counts: where the packed weights come to lie in memory,
    and what a short race mistakes for the fastest plan, move the time of a small model by a third.
    """
    dense, model = (work / one.name / MODEL for one in (job.of("dense"), job))
    tries = [LATENCY.clocked(dense, model, rows, seconds, BATCHES)[0] for _ in range(repeats)]
    found = {}
    for batch in map(str, BATCHES):
        times = sorted((one[batch] for one in tries), key=lambda one: one["ratio"])[(repeats - 1) // 2]
        choices = [layer["choice"] for layer in times["layers"]] or ["eager"]
        found[batch] = {**{key: times[key] for key in ("ratio", "dense_us", "ours_us")}, "choices": choices}
    return found


def quality(cell: Cell) -> dict[str, float]:
    """What the seeds reach on average, and at what cost."""
    return {"relative": fmean(cell.relative), "accuracy": fmean(cell.accuracy)}
