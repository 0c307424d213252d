"""The tables: every method at every budget, with nothing else asked for."""

from __future__ import annotations

from typing import Any

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import run_one
from dynamicgate.lab.runner import Experiment, Job, Table
from dynamicgate.lab.runner.comparison import check_one
from dynamicgate.lab.runner.training import settings_of
from experiments import ROOT
from experiments.transfer.datasets import DATASETS, FOLDER

BUDGETS = (0.05, 0.1, 0.2)
DENSE, OURS = "dense", "sparsify"
METHODS: dict[str, dict[str, Any]] = {
    "small": {},
    "pruned": {},
    "static": {},
    "random": {},
    "rigl": {},
    "set": {},
    "rigl from dense": {"model": "rigl", "initial_density": 1.0, "distribution": "erk"},
    "gate": {},
    OURS: {},
}
KEPT = (
    "model", "seed", "data", "quality", "macs", "params", "seconds", "steps", "valid", "choice", "settings", "gates",
    "collapses",
)  # fmt: skip


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """The run without what no page shows, or why the method cannot meet its budget on these data."""
    try:
        settings = settings_of(job, splits)
        check_one(settings, splits)
    except ValueError as error:
        return {"model": job.model, "seed": job.seed, "unreachable": str(error)}
    return stripped({**run_one(settings, splits, job.folder, device=job.device, show=False), "model": job.model})


def stripped(run: dict[str, Any]) -> dict[str, Any]:
    """Keep result files small: what every layer, gate and sample did is in the folder of the run."""
    return {key: run[key] for key in KEPT if key in run}


def at_budget(method: str, budget: float) -> str:
    """The name of a model in a table."""
    return f"{method} {budget:g}"


def models() -> dict[str, dict[str, Any]]:
    """The dense network once, and every method at every budget."""
    asked: dict[str, dict[str, Any]] = {DENSE: {"model": DENSE}}
    for budget in BUDGETS:
        for method, more in METHODS.items():
            asked[at_budget(method, budget)] = {"model": method, "budget": budget, **more}
    return asked


TABLES = tuple(
    Table(
        name=name, data=f"{FOLDER}/{dataset.file}", data_options=dataset.options, models=models(), train=train,
        seeds=dataset.seeds, revision=2,
    )
    for name, dataset in DATASETS.items()
)  # fmt: skip
TRANSFER = Experiment("transfer", TABLES, ROOT)
