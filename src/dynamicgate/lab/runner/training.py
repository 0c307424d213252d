"""Train and time the models of `lab.methods` for the jobs of a table."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from dynamicgate import distributed
from dynamicgate.data import batches
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import Settings, given
from dynamicgate.lab.methods.models import MODELS, Prepared
from dynamicgate.lab.methods.train_one import run_one
from dynamicgate.lab.runner.jobs import Job, Step
from dynamicgate.training.classification import weights_per_class
from dynamicgate.training.loop import Run
from dynamicgate.training.options import FitOptions

Prepare = Callable[[Settings, Splits], Prepared]
MANY_EPOCHS = 1_000_000  # timing stops long before they end


def settings_of(job: Job, splits: Splits) -> Settings:
    """What a job asks for, as resolved settings.

    An entry `model` says which of `MODELS` a name stands for; `model_options` is for models that a table builds itself.
    """
    options = tuple(sorted((key, str(value)) for key, value in job.table.data_options.items()))
    asked = {key: value for key, value in {"model": job.model, **job.settings}.items() if key != "model_options"}
    if asked.get("hidden") is not None:
        asked["hidden"] = tuple(asked["hidden"])
    return Settings(job.table.data, seed=job.seed, data_options=options, **asked).resolved(splits)


def train_settings(job: Job, splits: Splits, prepare: Prepare | None = None) -> dict[str, Any]:
    """`run_one` for a job."""
    chosen = settings_of(job, splits)
    run = run_one(chosen, splits, job.folder, prepare=prepare, device=job.device, show=False)
    return {**run, "model": job.model}


def step_settings(job: Job, splits: Splits, prepare: Prepare | None = None) -> Step:
    """A function that takes the next step of the training that `train_settings` does."""
    s = settings_of(job, splits)
    torch.manual_seed(s.seed)
    model, budget, sparsifier, stage_loss = (prepare or MODELS[s.model])(s, splits)
    device = distributed.choose_device(job.device)
    options = FitOptions(
        epochs=MANY_EPOCHS,
        batch=given(s.batch),
        lr=given(s.lr),
        gate_lr_scale=s.gate_lr_scale,
        weight_decay=s.weight_decay,
        accumulate=s.accumulate,
        clip=s.clip,
        bf16=s.bf16,
        seed=s.seed,
    )
    run = Run(
        model=model.to(device),
        train=splits.train,
        budget=budget,
        sparsifier=sparsifier,
        options=options,
        device=device,
        stage_loss=stage_loss,
        class_weights=weights_per_class("balanced" if s.balanced else None, splits.train.y, splits.classes),
    )
    model.train()
    order = itertools.chain.from_iterable(
        batches(len(splits.train), given(s.batch), seed=s.seed, epoch=epoch) for epoch in itertools.count()
    )
    return lambda: run.optimize(next(order))
