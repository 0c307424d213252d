"""Save a run of `fit` between two steps, and continue it."""

from __future__ import annotations

import time
from typing import Any

import torch

from dynamicgate import distributed
from dynamicgate.training.checkpoint import load_checkpoint, random_state, save_checkpoint, set_random_state
from dynamicgate.training.fingerprint import (
    data_identity,
    describe_function,
    describe_task,
    fingerprint,
    stage_settings,
)
from dynamicgate.training.log import read_log, rewrite_log
from dynamicgate.training.optimizer import optimizer_settings
from dynamicgate.training.run_state import RunState

LAST = "last.safetensors"


def run_settings(run: RunState) -> dict[str, Any]:
    """All that decides the result, as JSON values: a checkpoint is continued only by a run with the same. Found once:
    it reads every row, and gates may become constant in training."""
    if run.settings is None:
        run.settings = _find_settings(run)
    return run.settings


def _find_settings(run: RunState) -> dict[str, Any]:
    found = fingerprint(
        model=run.model,
        data_hash=data_identity(run.data),
        valid_hash=None if run.valid is None else data_identity(run.valid),
        budget=run.budget,
        sparsifier=run.sparsifier,
        options=run.options,
        class_weights=run.class_weights,
    )
    # Only what is not the default: checkpoints of earlier versions have none of these.
    if (loss := describe_task(run.valid_task)) is not None:
        found["loss"] = loss
    if run.metrics:
        found["metrics"] = {name: describe_function(metric, "metrics") for name, metric in run.metrics.items()}
    if run.own_optimizer:
        found["optimizer"] = optimizer_settings(run.optimizer)
    if run.staged:
        found["stages"] = {**stage_settings(run.model), **run.stage_loss.settings}
    return found if run.teacher is None else {**found, "teacher": run.teacher.fingerprint()}


def save_run(run: RunState) -> None:
    """Save everything needed to continue from this step."""
    if run.out is None:
        return
    rng = distributed.gather_named(random_state())
    # On every process, because it sums counts over them.
    sparsifier = run.sparsifier.state_dict() if run.sparsifier is not None else None
    run.saved_at = time.monotonic()
    if distributed.rank() != 0:
        return
    position = {
        "step": run.step,
        "seconds": run.history.seconds + run.saved_at - run.started,
        "best": run.history.best,
        "epochs_since_best": run.epochs_since_best,
        "stopped_early": run.history.stopped_early,
    }
    save_checkpoint(
        run.out / LAST,
        run.model,
        run.optimizer,
        run.budget,
        sparsifier,
        settings=run_settings(run),
        position=position,
        rng=rng,
    )


def resume(run: RunState) -> None:
    """Continue from the checkpoint in the folder of the run, if there is one."""
    if run.out is None:
        return
    settings = run_settings(run)  # first: what cannot be resumed later is refused before it trains
    run.out.mkdir(parents=True, exist_ok=True)
    path, log = run.out / LAST, run.out / "log.jsonl"
    if not path.exists():
        if distributed.rank() == 0:
            rewrite_log(log, [])
        return
    position, rng = load_checkpoint(path, run.model, run.optimizer, run.budget, run.sparsifier, settings=settings)
    run.step, run.history.seconds = position["step"], position["seconds"]
    run.history.best, run.epochs_since_best = position["best"], position["epochs_since_best"]
    run.history.stopped_early = position["stopped_early"]
    prefix = f"{distributed.rank()}."
    state = {k.removeprefix(prefix): v for k, v in rng.items() if k.startswith(prefix)}
    if state:
        set_random_state(state)
    else:  # a process that did not exist when the checkpoint was made
        torch.manual_seed(run.options.seed + distributed.rank() + 1_000_003 * run.step)
    run.history.log = [row for row in read_log(log) if row["step"] <= run.step]
    if distributed.rank() == 0:
        rewrite_log(log, run.history.log)
