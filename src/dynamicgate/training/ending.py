"""The end of an epoch and of a run: which epoch is best, when to stop early, calibration, the last validation."""

from __future__ import annotations

import math
import time
import warnings
from itertools import islice

from dynamicgate import distributed
from dynamicgate.accounting.validation import evaluate
from dynamicgate.budget import Budget
from dynamicgate.budget.calibration import executed_error
from dynamicgate.data.contract import move
from dynamicgate.io.model_file import load, save
from dynamicgate.training.loader_stream import LoaderStream
from dynamicgate.training.run_state import RunState

FEW_ROWS, MANY_ROWS = 100, 2000  # validation rows: fewer are never enough, so many always are
BATCHES_COMPARED = 8
MISSED = 0.01  # of the dense MACs: a budget that is met less exactly than this is missed
BEST = "best.safetensors"
FOLDED = "folded"  # gates, when the best epoch was saved


def validate(run: RunState) -> dict[str, float] | None:
    """The numbers of the model on the validation data; None where there are none."""
    if run.valid is None:
        return None
    return evaluate(run.model, run.valid, run.counter, task=run.valid_task, metrics=run.metrics)


def track_best(run: RunState, epoch: int, found: dict[str, float]) -> None:
    """Remember the best epoch and decide on early stopping. An epoch that exceeds the budget cannot be best."""
    budget, best = run.budget, run.history.best
    if isinstance(budget, Budget) and found["relative"] > budget.target + 0.01:
        return
    folded = len(budget.folded) if isinstance(budget, Budget) else 0
    if best is not None and best.get(FOLDED, 0) != folded:
        best = None  # from before gates became constant: its weights no longer fit
    name, more_is_better = run.valid_task.best
    gain = math.inf if best is None else found[name] - best[name]
    if gain > 0 if more_is_better or best is None else gain < 0:
        run.history.best = {"epoch": epoch, **run.units.scaled(found), **({FOLDED: folded} if folded else {})}
        run.epochs_since_best = 0
        if run.out is not None and distributed.rank() == 0:
            save(run.model, run.out / BEST)
        run.best_weights = {k: v.clone() for k, v in run.model.state_dict().items()}
    else:
        run.epochs_since_best += 1
    patience = run.options.patience
    run.history.stopped_early = patience is not None and run.epochs_since_best >= patience


def finish(run: RunState) -> None:
    """Restore the best epoch if `patience` is set, calibrate the gates to the budget, and validate."""
    if run.options.patience is not None and run.history.best is not None:
        _restore_best(run)
    if isinstance(run.budget, Budget):
        _calibrate(run, run.budget)
    final = validate(run)
    run.history.final = None if final is None else run.units.scaled(final)
    run.history.steps = run.step
    run.history.seconds += time.monotonic() - run.started
    run.model.eval()
    for callback in run.callbacks:
        callback.on_end(run.history)


def _calibrate(run: RunState, budget: Budget) -> None:
    """Calibrate on validation rows; where these leave what is executed uncertain, on training rows as well. On its own
    training rows a network needs less: gates open fewer units, and fewer rows open a stage. So with stages, validation
    rows alone count however few they are."""
    parts = [run.valid] if run.valid is not None else []
    if not parts or (not run.staged and _uncertain(run)):
        parts.append(run.data)
    batches = ((move(x, run.device), None) for part in parts for x, _ in part.batches(2048))
    unseen = None if run.valid is None else islice(((x, None) for x, _ in run.valid.batches(2048)), 10)
    achieved, target = budget.calibrate_(run.model, islice(batches, 10), unseen=unseen), budget.target
    if abs(achieved - target) > MISSED:
        warnings.warn(
            f"the budget was missed: asked for {target * run.units.scale:.3f} of the dense MACs, executes "
            f"{achieved * run.units.scale:.3f}. The gates "
            "open and close all at once: train longer, use smaller blocks or another gate network",
            stacklevel=4,
        )


def _uncertain(run: RunState) -> bool:
    """Whether the validation rows are so few that the mean of what they execute may be off by a missed budget."""
    if run.valid is None or isinstance(run.valid, LoaderStream) or len(run.valid) >= MANY_ROWS:
        return False
    if len(run.valid) < FEW_ROWS:
        return True
    size = math.ceil(len(run.valid) / BATCHES_COMPARED)
    inputs = (move(x, run.device) for x, _ in run.valid.batches(size))
    return executed_error(run.model, run.counter, inputs) > MISSED / 2


def _restore_best(run: RunState) -> None:
    weights = run.best_weights
    if weights is None and run.out is not None:  # the best epoch was before an interruption
        weights = load(run.out / BEST, into=run.model).state_dict()
    if weights is not None:
        run.model.load_state_dict(weights)
