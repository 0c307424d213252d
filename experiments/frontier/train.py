"""One run of the frontier: trained and measured like any other, with the rows it has right and what its gates add."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn

import dynamicgate as dg
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.validation import evaluate
from dynamicgate.gating.recording import usage
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import MODELS, run_one
from dynamicgate.lab.methods.models import FIXED_LOGIT
from dynamicgate.lab.methods.train_one import SAMPLES_FILE
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.training import settings_of

ROWS = 2048


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """The run, the rows that it has right, and what its gates are worth."""
    run = train_within_budget(job, splits)
    if "unreachable" in run:
        return run
    samples = json.loads((job.folder / SAMPLES_FILE).read_text(encoding="utf-8"))
    run = {**run, "right": samples["right"]}
    run.pop("curve", None)  # of a model in stages: long, and nothing here reads it
    tuning = splits.test is splits.valid
    if not tuning and any(gate["kind"] == "dynamic" for gate in run["gates"]):
        trained = dg.load(job.folder / "model.safetensors")
        run = {**run, "accuracy_of_mean_mask": accuracy_of_mean_mask(trained, splits)}
    return run


def train_within_budget(job: Job, splits: Splits) -> dict[str, Any]:
    """The run, or why the method cannot meet its budget. On a GPU matrices are multiplied in tf32."""
    torch.set_float32_matmul_precision("high")
    try:
        settings = settings_of(job, splits)
        model, budget, sparsifier, _ = MODELS[settings.model](settings, splits)
        if isinstance(budget, dg.Budget):
            budget.bind(MacCounter.for_mlp(model), sparsifier)
    except ValueError as error:
        return {"model": job.model, "seed": job.seed, "unreachable": str(error)}
    return {**run_one(settings, splits, job.folder, device=job.device, show=False), "model": job.model}


@torch.no_grad()
def accuracy_of_mean_mask(model: nn.Module, splits: Splits) -> float:
    """Accuracy on the test rows if every gate opens the same blocks for all inputs: those that are open most often on
    the training rows, as many as are open on average. What is lost compared with the trained model is what choosing by
    the input is worth."""
    model.eval()
    gates = {name: gate for name, gate in dg.named_gates(model).items() if gate.config.kind == "dynamic"}  # not folded
    with usage(model) as used:
        model(splits.train.rows(torch.arange(min(ROWS, len(splits.train)))))
    rates = {name: used[name].open.mean(0) for name in gates}
    for name, gate in gates.items():
        most_open = rates[name].argsort(descending=True)[: max(1, round(float(rates[name].sum())))]
        gate.last.weight.zero_()  # type: ignore[operator]
        gate.bias.fill_(-FIXED_LOGIT).index_fill_(0, most_open, FIXED_LOGIT)
        gate.tau.fill_(1.0)
        gate.theta.fill_(0.5)
    return evaluate(model, splits.test, MacCounter.for_mlp(model))["accuracy"]
