"""Recipes whose models are those of `compare`: trained, measured and timed by its one way to do so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from dynamicgate import distributed
from dynamicgate.data import batches
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods import MODELS, Settings, run_one
from dynamicgate.lab.methods.models import Prepared
from dynamicgate.lab.runner.jobs import Job, Step
from dynamicgate.training.loop import Run
from dynamicgate.training.options import FitOptions, weights_per_class

Prepare = Callable[[Settings, Splits], Prepared]
FOREVER = 1_000_000  # epochs: a clock stops a run long before it ends


def settings_of(job: Job, splits: Splits) -> Settings:
    """What a job asks for as `Settings`.

    An entry `model` says which model of `compare` a name stands for, `beside` is for a recipe's own way to make models.
    """
    options = tuple(sorted((key, str(value)) for key, value in job.recipe.data_options.items()))
    asked = {key: value for key, value in {"model": job.model, **job.settings}.items() if key != "beside"}
    asked["hidden"] = tuple(asked["hidden"])
    return Settings(job.recipe.data, seed=job.seed, data_options=options, **asked).resolved(splits)


def train_settings(job: Job, splits: Splits, prepare: Prepare | None = None) -> dict[str, Any]:
    """`compare.run_one` for a job."""
    chosen = settings_of(job, splits)
    run = run_one(chosen, splits, job.folder, prepare=prepare, device=job.device, show=False)
    return {**run, "model": job.model}


def step_settings(job: Job, splits: Splits, prepare: Prepare | None = None) -> Step:
    """A function that takes the next step of the training that `train_settings` does."""
    s = settings_of(job, splits)
    torch.manual_seed(s.seed)
    model, budget, sparsifier = (prepare or MODELS[s.model])(s, splits)
    device = distributed.choose_device(job.device)
    options = FitOptions(
        epochs=FOREVER, batch=s.batch, lr=s.lr, gate_lr_scale=s.gate_rate, weight_decay=s.weight_decay,
        accumulate=s.accumulate, clip=s.clip, bf16=s.bf16, seed=s.seed,
    )  # fmt: skip
    weights = weights_per_class("balanced" if s.balanced else None, splits.train, splits.classes)
    run = Run(
        model=model.to(device), train=splits.train, budget=budget, sparsifier=sparsifier, options=options,
        device=device, class_weights=weights,
    )  # fmt: skip
    model.train()
    order = itertools.chain.from_iterable(
        batches(len(splits.train), s.batch, seed=s.seed, epoch=epoch) for epoch in itertools.count()
    )
    return lambda: run.optimize(next(order))
