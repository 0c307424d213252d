"""A small experiment for tests: three models on three clouds of points, over two seeds.

`python -m tests.lab.runner.clouds FOLDER` runs it below a folder, as the commands of experiments do.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynamicgate.lab.result_file import read_runs
from dynamicgate.lab.runner import Experiment, Table, run_jobs, step_settings, train_settings
from dynamicgate.lab.runner.pool import ProcessPool
from dynamicgate.lab.runner.results import table_path
from dynamicgate.lab.runner.scheduling import Engine, R, T

COMMAND = "python -m tests.lab.runner.clouds"
SETTINGS = {"budget": 0.5, "hidden": [16], "epochs": 3, "batch": 32, "lr": 1e-2}


def write_clouds(path: Path) -> Path:
    """240 points of three classes in ten dimensions."""
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    np.savez(path, x=random.normal(size=(3, 10))[y] + 0.4 * random.normal(size=(240, 10)), y=y)
    return path


def new_experiment(root: Path, *, seeds: int = 2, timed: bool = False) -> Experiment:
    """The experiment below a folder, with its data. timed: as real ones are, which takes seconds a run."""
    root.mkdir(parents=True, exist_ok=True)
    data = root / "clouds.npz"
    if not data.exists():
        write_clouds(data)
    models = dict.fromkeys(("dense", "gate", "rigl"), SETTINGS)
    table = Table(
        name="clouds/small", data=str(data), models=models, seeds=tuple(range(seeds)), train=train_settings,
        step=step_settings if timed else None, quick_rows=60,
    )  # fmt: skip
    return Experiment("test", (table,), root)


class InThisProcess:
    """An engine for tests that are not about processes, each of which would import torch first."""

    workers = 1

    def run(
        self,
        task: Callable[[T], R],
        items: Sequence[T],
        *,
        more: Callable[[T], Sequence[T]] | None = None,
        shared: Path | None = None,
    ) -> Iterator[tuple[T, R]]:
        """One item after the other, with one thread as everywhere."""
        before, waiting = torch.get_num_threads(), deque(items)
        torch.set_num_threads(1)
        try:
            while waiting:
                item = waiting.popleft()
                yield item, task(item)
                waiting.extendleft(reversed(more(item) if more else ()))
        finally:
            torch.set_num_threads(before)


def run(experiment: Experiment, quick: bool = False, engine: Engine | None = None) -> int:
    """Run what is missing, in this process unless an engine is given."""
    asked = replace(experiment, quick=quick)
    return run_jobs(asked.jobs(device="cpu"), asked.results, engine=engine or InThisProcess(), command=COMMAND)


def stored(experiment: Experiment) -> list[dict[str, Any]]:
    """The runs that the table holds."""
    return read_runs(table_path(experiment.results, experiment.tables[0].name))


def content(experiment: Experiment) -> dict[tuple[str, int], Any]:
    """What the table holds, apart from times."""
    found = {}
    for one in stored(experiment):
        del one["meta"]["created"], one["meta"]["commit"], one["seconds"]
        one.pop("seconds_relative", None)
        found[one["model"], one["seed"]] = one
    return found


if __name__ == "__main__":
    run(new_experiment(Path(sys.argv[1])), engine=ProcessPool(1))
