"""Do gates pay on these data, and which? Short trainings with and without them, judged on rows that were held out."""

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
from dynamicgate.training import fit

STEPS, BATCH = 600, 128
HELD_OUT, MOST_HELD_OUT = 0.15, 5000
Recipe = Callable[[nn.Module], Mapping[str, Any]]
"""Puts gates on a model, in place, and returns what `fit` needs."""


class Choice(NamedTuple):
    """The name of the recipe that was chosen, None for the one without gates, and the reason in a sentence."""

    name: str | None
    reason: str


def choose_recipe(
    model: nn.Module,
    data: Any,
    valid: Any,
    *,
    without: Recipe,
    candidates: Mapping[str, Recipe],
    steps: int = STEPS,
    seed: int = 0,
    show: bool = True,
) -> Choice:
    """Train copies of `model` for a short while, `without` gates and with each candidate, and take the best candidate
    only where more of the validation rows are right with it, by more than the standard error of the difference.

    data: training rows. valid: rows to decide on; None holds some of `data` out. Test rows must not be among them.
    A candidate that does not fit the model or the budget raises ValueError and is left out.
    """
    train, held = _parts(data, valid, seed)
    epochs, batch = max(1, round(steps * BATCH / len(train))), min(BATCH, len(train))

    def right_with(recipe: Recipe, name: str) -> Tensor:
        one = copy.deepcopy(model)
        parts = recipe(one)
        fit(one, train, valid=held, epochs=epochs, batch=batch, seed=seed, label=f"trying {name}", show=show, **parts)
        return _right(one, held)

    plain, right, refused = right_with(without, "no gates"), dict[str, Tensor](), ""
    for name, recipe in candidates.items():
        try:
            right[name] = right_with(recipe, name)
        except ValueError as reason:
            refused = str(reason)
    if not right:
        return Choice(None, f"no gates: none fit this model and budget ({refused})")
    best = max(right, key=lambda name: float(right[name].mean()))
    gain = right[best] - plain
    error = float(gain.std()) / math.sqrt(len(gain))
    shown = (
        f"after {steps} steps {float(right[best].mean()):.2%} of {len(gain)} held-out rows were right with {best} "
        f"and {float(plain.mean()):.2%} without gates, at the same cost (standard error {error:.2%})"
    )
    if float(gain.mean()) > error:
        return Choice(best, f"{best}: {shown}")
    return Choice(None, f"no gates: {shown}")


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
