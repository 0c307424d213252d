"""A small experiment for tests: three models on three clouds of points, over two seeds.

`python -m tests.lab.runner.clouds FOLDER` runs it below a folder, as the commands of experiments do.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from dynamicgate.lab.runner import Experiment, Table, run_jobs, step_settings, train_settings

COMMAND = "python -m tests.lab.runner.clouds"
SETTINGS = {"budget": 0.5, "hidden": [16], "epochs": 3, "batch": 32, "lr": 1e-2}


def write_clouds(path: Path) -> Path:
    """240 points of three classes in ten dimensions."""
    random = np.random.default_rng(0)
    y = np.arange(240) % 3
    np.savez(path, x=random.normal(size=(3, 10))[y] + 0.4 * random.normal(size=(240, 10)), y=y)
    return path


def new_experiment(root: Path) -> Experiment:
    """The experiment below a folder, with its data."""
    data = root / "clouds.npz"
    if not data.exists():
        write_clouds(data)
    table = Table(
        name="clouds/small", data=str(data), models=dict.fromkeys(("dense", "gate", "rigl"), SETTINGS), seeds=(0, 1),
        train=train_settings, step=step_settings, quick_rows=60,
    )  # fmt: skip
    return Experiment("test", (table,), root)


def run(experiment: Experiment, processes: int = 1, quick: bool = False) -> int:
    """Run what is missing."""
    asked = replace(experiment, quick=quick)
    return run_jobs(asked.jobs(device="cpu"), asked.results, processes=processes, command=COMMAND)


if __name__ == "__main__":
    run(new_experiment(Path(sys.argv[1])))
