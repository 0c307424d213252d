"""Do gates pay on these data, and which? Short trainings with and without them, judged on rows that were held out."""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.data import Arrays
from dynamicgate.data.contract import as_arrays
from dynamicgate.modules import evaluating
from dynamicgate.training import fit

STEPS, BATCH = 600, 128
HELD_OUT, MOST_HELD_OUT = 0.15, 5000
ENOUGH_HELD_OUT = 200  # rows: with fewer, one more row that is right says little, and every row is held out once
FOLDS = 3
PLAIN = "no gates"
Recipe = Callable[[nn.Module], Mapping[str, Any]]
"""Puts gates on a model, in place, and returns what `fit` needs."""


class Trial(NamedTuple):
    """A model to train for a short while, and what `fit` needs for it, epochs and batch included."""

    model: nn.Module
    options: Mapping[str, Any]


Build = Callable[[Arrays], Trial]
"""Makes a trial on these training rows. ValueError: the candidate does not fit the model or the budget."""


class Choice(NamedTuple):
    """The name of the recipe that was chosen, None for the one without gates, and the reason in a sentence.

    accuracy: on held-out rows, of every candidate that was tried. refused: why others were not. steps, seconds: what
    the short trainings took.
    """

    name: str | None
    reason: str
    accuracy: Mapping[str, float] = {}
    refused: Mapping[str, str] = {}
    steps: int = 0
    seconds: float = 0.0


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

    def build(recipe: Recipe) -> Build:
        def trial(train: Arrays) -> Trial:
            one = copy.deepcopy(model)
            batch = min(BATCH, len(train))
            epochs = max(1, round(steps / math.ceil(len(train) / batch)))
            return Trial(one, {"epochs": epochs, "batch": batch, **recipe(one)})

        return trial

    train = as_arrays(data, "training data", least_classes=2)
    held = None if valid is None else as_arrays(valid, "validation data", least_classes=1)
    gated = {name: build(recipe) for name, recipe in candidates.items()}
    choice = choose_trial(train, held, plain={PLAIN: build(without)}, gated=gated, seed=seed, show=show)
    return choice._replace(name=None) if choice.name == PLAIN else choice


def choose_trial(
    train: Arrays,
    valid: Arrays | None,
    *,
    plain: Mapping[str, Build],
    gated: Mapping[str, Build],
    seed: int = 0,
    show: bool = True,
    device: str = "auto",
) -> Choice:
    """Try every candidate, and take the best `plain` one, the first of equals, or the best `gated` one where more of
    the held-out rows are right with it, by more than the standard error of the difference. One plain one has to fit.

    Where `valid` has few rows, or is None and `train` would leave few, every row is held out once, by turns.
    """
    started, steps = time.monotonic(), 0
    right, refused = dict[str, Tensor](), dict[str, str]()  # for every held-out row 1 where it was right, else 0
    parts = _parts(train, valid, seed)
    for name, build in {**plain, **gated}.items():
        found: list[Tensor] = []
        try:
            for rows, held in parts:
                one, options = build(rows)
                steps += fit(one, rows, valid=held, seed=seed, device=device, show=False, **options).steps
                found.append(_right(one, held))
        except ValueError as error:
            refused[name] = str(error)
            continue
        right[name] = torch.cat(found)
        if show and distributed.rank() == 0:
            seen = right[name]
            print(f"tried {name}: {float(seen.mean()):.2%} of {len(seen)} held-out rows right", file=sys.stderr)
    fitting = [name for name in plain if name in right]
    if not fitting:
        raise ValueError("; ".join(f"{name}: {reason}" for name, reason in refused.items()))
    base = max(fitting, key=lambda name: float(right[name].mean()))  # the first of equals
    name, reason = _decide(base, right[base], {name: right[name] for name in gated if name in right}, refused)
    accuracy = {tried: float(rows.mean()) for tried, rows in right.items()}
    return Choice(name, reason, accuracy, refused, steps, time.monotonic() - started)


def _decide(base: str, plain: Tensor, gated: Mapping[str, Tensor], refused: Mapping[str, str]) -> tuple[str, str]:
    """The best gates, or `base` where they do not gain by it, and the reason."""
    if not gated:
        last = list(refused.values())[-1:] or ["none were tried"]
        return base, f"{base}: gates do not fit this model and budget ({last[0]})"
    best = max(gated, key=lambda name: float(gated[name].mean()))
    gain = gated[best] - plain
    error = float(gain.std()) / math.sqrt(len(gain))
    shown = (
        f"after short trainings {float(gated[best].mean()):.2%} of {len(gain)} held-out rows were right with "
        f"{best} and {float(plain.mean()):.2%} with {base}, at the same cost (standard error {error:.2%})"
    )
    chosen = best if float(gain.mean()) > error else base
    return chosen, f"{chosen}: {shown}"


def _parts(train: Arrays, valid: Arrays | None, seed: int) -> list[tuple[Arrays, Arrays]]:
    """Rows to train on and rows to decide on: one pair, or one for each fold where the rows to decide on are few."""
    rows = train
    if valid is not None:
        if len(valid) >= ENOUGH_HELD_OUT or not (_is_plain(train) and _is_plain(valid)):
            return [(train, valid)]
        rows = Arrays(torch.cat([train.values, valid.values]), torch.cat([train.y, valid.y]))
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    count = min(MOST_HELD_OUT, round(HELD_OUT * len(rows)))
    if valid is None and count >= ENOUGH_HELD_OUT:
        return [(rows.take(order[count:]), rows.take(order[:count]))]
    folds = order.tensor_split(FOLDS)
    return [
        (rows.take(torch.cat([fold for k, fold in enumerate(folds) if k != held])), rows.take(folds[held]))
        for held in range(FOLDS)
    ]


def _is_plain(rows: Arrays) -> bool:
    """Whether rows are a tensor that a model reads as it is, so that they can be put together with others."""
    return isinstance(rows.x, Tensor) and rows.prepare is None and rows.augment is None


@torch.no_grad()
def _right(model: nn.Module, rows: Arrays) -> Tensor:
    device = next(model.parameters()).device
    with evaluating(model):
        return torch.cat([(model(x.to(device)).argmax(1).cpu() == y.cpu()).double() for x, y in rows.batches(2048)])
