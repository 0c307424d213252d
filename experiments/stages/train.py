"""One run: trained and measured like any other, and on CIFAR-10 put at other budgets without training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import dynamicgate as dg
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import MODELS, run_one
from dynamicgate.lab.methods.hyperparameters import dense_macs, given, own_budget
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.training import settings_of

MODEL = "model.safetensors"
PUT_AT = {("cifar10", "staged 0.05"): (0.04, 0.05, 0.06, 0.07, 0.08)}  # table and model: budgets


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """The run, or why the method cannot meet its budget. On a GPU matrices are multiplied in tf32."""
    torch.set_float32_matmul_precision("high")
    try:
        settings = settings_of(job, splits)
        model, budget, sparsifier, _ = MODELS[settings.model](settings, splits)
        if isinstance(budget, dg.Budget):
            budget.bind(MacCounter.for_mlp(model), sparsifier)
    except ValueError as error:
        return {"model": job.model, "seed": job.seed, "unreachable": str(error)}
    run = run_one(settings, splits, job.folder, device=job.device, show=False)
    for target in PUT_AT.get((job.table.name, job.model), ()):
        trained = dg.load(job.folder / MODEL)
        full = dense_macs((splits.train.features, *given(settings.hidden), splits.classes))
        dg.calibrate_(trained, splits.valid, macs=own_budget(replace(settings, budget=target), splits))
        found = dg.measure(trained, splits.test)
        put = {"relative": found.macs["executed"] / full, "accuracy": found.accuracy}
        run = {**run, "put_at": {**run.get("put_at", {}), f"{target:g}": put}}
    return {**run, "model": job.model}
