"""Do gates pay on these data, and which? Short trainings with and without them, judged on rows that were held out, and
by the clock."""

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
from dynamicgate.data.contract import call, move
from dynamicgate.data.many_inputs import Samples
from dynamicgate.data.tasks import Classification, Task
from dynamicgate.modules import evaluating
from dynamicgate.presets.clock import in_words, is_slower, slowdown
from dynamicgate.training import fit
from dynamicgate.training.reading import read_in_memory

STEPS, BATCH = 600, 128
HELD_OUT, MOST_HELD_OUT = 0.15, 5000
ENOUGH_HELD_OUT = 200  # rows: with fewer, one more row that is right says little, and every row is held out once
FOLDS = 3
EXAMPLES = 1024  # held-out rows that compiled models are timed on
PLAIN = "no gates"
Recipe = Callable[[nn.Module], Mapping[str, Any]]
"""Puts gates on a model, in place, and returns what `fit` needs."""


class Trial(NamedTuple):
    """A model to train for a short while, and what `fit` needs for it, epochs and batch included."""

    model: nn.Module
    options: Mapping[str, Any]


Build = Callable[[Any], Trial]
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
    task: Task | None = None,
    steps: int = STEPS,
    seed: int = 0,
    show: bool = True,
    clock: bool = True,
) -> Choice:
    """Train copies of `model` for a short while, `without` gates and with each candidate, and take the best candidate
    only where more of the validation rows are right with it, by more than the standard error of the difference, and
    where it is not slower on this machine.

    data: training rows. valid: rows to decide on; None holds some of `data` out. Test rows must not be among them.
    A candidate that does not fit the model or the budget raises ValueError and is left out.
    """

    def build(recipe: Recipe) -> Build:
        def trial(train: Samples) -> Trial:
            one = copy.deepcopy(model)
            batch = min(BATCH, len(train))
            epochs = max(1, round(steps / math.ceil(len(train) / batch)))
            return Trial(one, {"epochs": epochs, "batch": batch, **recipe(one)})

        return trial

    task = task or Classification()
    train, held = read_in_memory(model, data, valid, task)
    gated = {name: build(recipe) for name, recipe in candidates.items()}
    plain = {PLAIN: build(without)}
    choice = choose_trial(train, held, plain=plain, gated=gated, task=task, seed=seed, show=show, clock=clock)
    return choice._replace(name=None) if choice.name == PLAIN else choice


def choose_trial(
    train: Samples,
    valid: Samples | None,
    *,
    plain: Mapping[str, Build],
    gated: Mapping[str, Build],
    task: Task | None = None,
    seed: int = 0,
    show: bool = True,
    device: str = "auto",
    clock: bool = True,
) -> Choice:
    """Try every candidate, and take the best `plain` one, or the best `gated` one where more of the held-out rows are
    right with it, by more than the standard error of the difference. One plain one has to fit.

    Among plain ones that the number of right rows cannot tell from the best, by the same standard error, the one with
    the smallest loss on held-out rows is the best: on small tables a loss says more than a few rows that are right.
    Where `valid` has few rows, or is None and `train` would leave few, every row is held out once, by turns. Nothing is
    trained where there is one plain candidate and no gates fit.
    clock: gates that are right more often are taken only if the compiled model is not slower with them than without, by
        more than 3 % at batch 1 or 256 on the CPU of this machine; else the next best gates are tried.
    """
    started, steps, task = time.monotonic(), 0, task or Classification()
    right, losses, refused = dict[str, Tensor](), dict[str, float](), dict[str, str]()
    models, parts = dict[str, nn.Module](), _parts(train, valid, seed)
    if len(plain) == 1 and not (look := _first_that_fits(gated, parts[0][0])).fits:  # nothing to compare it with
        (base,) = plain
        plain[base](parts[0][0])  # has to fit
        reason = _decide(base, torch.empty(0), {}, look.refused, task, lambda _: None)[1]
        return Choice(base, reason, refused=look.refused)
    for name, build in {**plain, **gated}.items():
        found: list[Judged] = []
        for rows, held in parts:
            try:
                one, options = build(rows)
            except ValueError as error:
                refused[name] = str(error)
                break
            options = {"loss": task, **options}
            steps += fit(one, rows, valid=held, seed=seed, device=device, show=False, **options).steps
            found.append(_judge(one, held, task))
        if name in refused:
            continue
        models[name], right[name] = one, torch.cat([part.right for part in found])
        losses[name] = float(torch.cat([part.loss for part in found]).mean())
        if show and distributed.rank() == 0:
            seen = right[name]
            print(f"tried {name}: {_shown(seen, task)} of {len(seen)} held-out rows", file=sys.stderr)
    fitting = [name for name in plain if name in right]
    if not fitting:
        raise ValueError("; ".join(f"{name}: {reason}" for name, reason in refused.items()))
    base = min(_level_with_best({name: right[name] for name in fitting}), key=losses.__getitem__)  # first of equals

    def slower(name: str) -> dict[int, float] | None:
        example = next(iter(parts[-1][1].batches(EXAMPLES)))[0] if clock else None
        if not isinstance(example, Tensor):
            return None
        ratios = slowdown(models[name], models[base], example.to(next(models[name].parameters()).device))
        return ratios if is_slower(ratios) else None

    gates = {name: right[name] for name in gated if name in right}
    name, reason = _decide(base, right[base], gates, refused, task, slower)
    accuracy = {tried: float(rows.mean()) for tried, rows in right.items()}
    return Choice(name, reason, accuracy, refused, steps, time.monotonic() - started)


class _Look(NamedTuple):
    fits: bool
    refused: dict[str, str]


def _first_that_fits(candidates: Mapping[str, Build], rows: Samples) -> _Look:
    """Whether any fits, and the reasons of those before it that do not."""
    refused = {}
    with torch.random.fork_rng(range(torch.cuda.device_count())):  # trainings draw what they would without this look
        for name, build in candidates.items():
            try:
                build(rows)
            except ValueError as error:
                refused[name] = str(error)
                continue
            return _Look(True, refused)
    return _Look(False, refused)


def _decide(
    base: str,
    plain: Tensor,
    gated: Mapping[str, Tensor],
    refused: Mapping[str, str],
    task: Task,
    slower: Callable[[str], Mapping[int, float] | None],
) -> tuple[str, str]:
    """The best gates that the clock does not refuse, or `base` where none gain by more than chance; and the reason."""
    if not gated:
        last = list(refused.values())[-1:] or ["none were tried"]
        return base, f"{base}: gates do not fit this model and budget ({last[0]})"
    too_slow = ""
    for best in sorted(gated, key=lambda name: -float(gated[name].mean())):
        gain = gated[best] - plain
        error = float(gain.std()) / math.sqrt(len(gain))
        shown = _compared(best, gated[best], base, plain, error, task)
        if float(gain.mean()) <= error:
            break
        ratios = slower(best)
        if ratios is None:
            return best, f"{best}: {shown}{too_slow}"
        too_slow += f"; compiled for this CPU {best} takes {in_words(ratios)}"
    return base, f"{base}: {shown}{too_slow}"


def _compared(best: str, gated: Tensor, base: str, plain: Tensor, error: float, task: Task) -> str:
    """What held-out rows say of gates and of the best without."""
    if task.name == "classification":
        return (
            f"after short trainings {float(gated.mean()):.2%} of {len(gated)} held-out rows were right with "
            f"{best} and {float(plain.mean()):.2%} with {base}, at the same cost (standard error {error:.2%})"
        )
    return (
        f"after short trainings the mean loss of {len(gated)} held-out rows was {-float(gated.mean()):.4g} "
        f"with {best} and {-float(plain.mean()):.4g} with {base}, at the same cost (standard error {error:.2g})"
    )


def _parts(train: Samples, valid: Samples | None, seed: int) -> list[tuple[Samples, Samples]]:
    """Rows to train on and rows to decide on: one pair, or one for each fold where the rows to decide on are few."""
    rows = train
    if valid is not None:
        if len(valid) >= ENOUGH_HELD_OUT or not (isinstance(train, Arrays) and isinstance(valid, Arrays)):
            return [(train, valid)]
        if not (_is_plain(train) and _is_plain(valid)):
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


class Judged(NamedTuple):
    """Of every row: `right` is 1 where its class is right and 0 where not, without classes its loss with a minus; and
    its `loss`."""

    right: Tensor
    loss: Tensor


@torch.no_grad()
def _judge(model: nn.Module, rows: Samples, task: Task) -> Judged:
    device, right, losses = next(model.parameters()).device, list[Tensor](), list[Tensor]()
    with evaluating(model):
        for x, y in rows.batches(2048):
            outputs, y = call(model, move(x, device)), y.to(device)
            loss = task.of_rows(outputs, y).double().cpu()
            losses.append(loss)
            if task.name == "classification":
                right.append((task.predict(outputs) == y).double().reshape(len(y), -1).mean(1).cpu())
            else:
                right.append(-loss)
    return Judged(torch.cat(right), torch.cat(losses))


def _level_with_best(right: Mapping[str, Tensor]) -> list[str]:
    """The candidate with the most right rows, and those whose difference to it is within its standard error."""
    best = max(right.values(), key=lambda rows: float(rows.mean()))
    gaps = {name: best - rows for name, rows in right.items()}
    return [name for name, gap in gaps.items() if float(gap.mean()) <= float(gap.std()) / math.sqrt(len(gap))]


def _shown(rows: Tensor, task: Task) -> str:
    mean = float(rows.mean())
    return f"right are {mean:.2%}" if task.name == "classification" else f"{-mean:.4g} is the mean loss"
