"""Do stages pay on these data? Short trainings with and without them, judged on rows that were held out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.data import Arrays
from dynamicgate.data.contract import as_arrays
from dynamicgate.modules import evaluating
from dynamicgate.presets.stages import PLANS, PlanName
from dynamicgate.training import fit

STEPS, BATCH = 600, 128
HELD_OUT, MOST_HELD_OUT = 0.15, 5000
Recipe = Callable[[nn.Module], Mapping[str, Any]]


class Choice(NamedTuple):
    """The division of the budget over stages, or None for no stages, and the reason in a sentence."""

    plan: PlanName | None
    reason: str


def choose_stages(
    model: nn.Module,
    data: Any,
    valid: Any,
    *,
    without: Recipe,
    staged: Callable[[nn.Module, PlanName], Mapping[str, Any]],
    steps: int = STEPS,
    seed: int = 0,
    show: bool = True,
) -> Choice:
    """Train copies of `model` for a short while, `without` stages and with each division of the budget, and take stages
    only where more of the validation rows are right with them, by more than the standard error of the difference.

    data: training rows. valid: rows to decide on; None holds some of `data` out. Test rows must not be among them.
    """
    train, held = _parts(data, valid, seed)
    epochs, batch = max(1, round(steps * BATCH / len(train))), min(BATCH, len(train))
    right: dict[PlanName | None, Tensor] = {}
    failed = ""
    for plan in (None, *PLANS):
        one = copy.deepcopy(model)
        try:
            parts = without(one) if plan is None else staged(one, plan)
        except ValueError as refused:
            if plan is None:
                raise
            failed = str(refused)
            continue
        label = f"trying {plan or 'no'} stages"
        fit(one, train, valid=held, epochs=epochs, batch=batch, seed=seed, label=label, show=show, **parts)
        right[plan] = _right(one, held)
    plans = [plan for plan in PLANS if plan in right]
    if not plans:
        return Choice(None, f"no stages: they do not fit this model ({failed})")
    best = max(plans, key=lambda plan: float(right[plan].mean()))
    gain = right[best] - right[None]
    error = float(gain.std()) / math.sqrt(len(gain))
    shown = (
        f"after {steps} steps {float(right[best].mean()):.2%} of {len(gain)} held-out rows were right with {best} "
        f"stages and {float(right[None].mean()):.2%} without, at the same cost (standard error {error:.2%})"
    )
    if float(gain.mean()) > error:
        return Choice(best, f"{best} stages: {shown}")
    return Choice(None, f"no stages: {shown}")


def _parts(data: Any, valid: Any, seed: int) -> tuple[Arrays, Arrays]:
    train = as_arrays(data, "training data", least_classes=2)
    if valid is not None:
        return train, as_arrays(valid, "validation data", least_classes=1)
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    count = min(MOST_HELD_OUT, max(1, round(HELD_OUT * len(train))))
    return train.take(order[count:]), train.take(order[:count])


@torch.no_grad()
def _right(model: nn.Module, rows: Arrays) -> Tensor:
    device = next(model.parameters()).device
    with evaluating(model):
        return torch.cat([(model(x.to(device)).argmax(1).cpu() == y.cpu()).double() for x, y in rows.batches(2048)])
