"""One run: trained and measured like any other, and on CIFAR-10 put at other budgets without training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import dynamicgate as dg
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import dense_macs, given, own_budget
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.training import settings_of
from experiments.frontier.train import train_within_budget

CURVE_MODEL = ("cifar10", "staged 0.05")  # table and model
CURVE_BUDGETS = (0.04, 0.05, 0.06, 0.07, 0.08)  # that model is put at each of them, and one is trained for each


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """The run, and what the model that is put at other budgets reaches there."""
    run = train_within_budget(job, splits)
    if (job.table.name, job.model) != CURVE_MODEL or "unreachable" in run:
        return run
    settings, put_at = settings_of(job, splits), {}
    full = dense_macs((splits.train.features, *given(settings.hidden), splits.classes))
    for target in CURVE_BUDGETS:
        trained = dg.load(job.folder / "model.safetensors")
        dg.calibrate_(trained, splits.valid, macs=own_budget(replace(settings, budget=target), splits))
        found = dg.measure(trained, splits.test)
        put_at[f"{target:g}"] = {"relative": found.macs["executed"] / full, "accuracy": found.accuracy}
    return {**run, "put_at": put_at}
