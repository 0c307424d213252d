"""What is trained: stages, the same recipe without them, and a cascade, on the seven datasets of the frontier.

Protocol, written down before the runs. Networks, epochs, learning rates and dropouts are those of the frontier, where
the recipe had four tuning runs for each dataset. Stages have four as well (`NAME-tuning`: two or three stages, with and
without attention to the rows that open them), at one budget, by validation rows; the best go into chosen.json. Five
seeds; test rows are measured once, by the run that trained the model. Stages are used at a budget of a dataset where,
over the seeds, validation accuracy with them exceeds that without by more than the standard error of the difference;
elsewhere the recipe goes without. Everything is done twice, with masks of single connections and with masks of tiles of
16 outputs (`NAME-16x1`), which CPUs run several times as fast. At budgets below those of the frontier, with and without
stages, the learning rate is one of four, by validation rows of other seeds (`NAME-rates`). The primary comparison is
the accuracy on test rows with stages where they are used minus that without, averaged over the budgets of a dataset:
paired over seeds, Holm's correction over the datasets of each kind of mask. Seen of test rows before that was written:
those of MNIST (both widths) and CIFAR-10 with single connections, and with tiles one seed of MNIST with 1,024 units and
of CIFAR-10. Seen before learning rates were chosen: those of MNIST at 0.015.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dynamicgate.lab.runner import Table
from dynamicgate.presets.sparsify import DISTRIBUTION, spending
from experiments.frontier.datasets import DATASETS, SEVERAL_SEEDS, WITHOUT_TEST, Dataset
from experiments.stages.train import CURVE_BUDGETS, CURVE_MODEL, train

BUDGETS = (0.02, 0.05, 0.1)
MORE_BUDGETS = {"mnist": (0.015, 0.03)}
RATES_AT = {"mnist": 0.015}  # below the budgets that the frontier chose its learning rates for
RATE_SCALES = (1.0, 1.5, 2.0, 3.0)
TUNED_AT, ABLATED_AT = 0.05, 0.02
TRIALS = {f"{plan} {focus:g}": {"stages": plan, "focus": focus} for plan in ("two", "three") for focus in (0.0, 1.0)}
EVERY = {  # optimizer steps between two mask updates: about forty of them in a run
    "digits": 43, "mnist": 50, "mnist-wide": 24, "cifar10": 33, "tiny-imagenet": 20, "speech": 22, "pbmc3k": 8,
}  # fmt: skip
TIMED = ("mnist", "mnist-wide", "cifar10")  # these are also trained with masks of tiles, for speed
SINGLE_TIMED_BUDGETS = (0.01, 0.015, 0.03, 0.07, 0.2)  # besides the usual ones
STAGED_TIMED_BUDGETS = (0.01, 0.015, 0.03)
ABLATED_ON = ("mnist", "cifar10")
RATE_SEEDS = (*SEVERAL_SEEDS, 103)
CHOSEN = Path(__file__).with_name("chosen.json")
RECIPES = Path(__file__).with_name("recipes.json")  # learning rates and dropouts that the frontier had chosen by then
SINGLE, STAGED, CASCADE, TILES = "single", "staged", "cascade", "16x1"


def chosen_stages() -> dict[str, Any]:
    """By dataset the division and the attention that tuning chose."""
    return json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}


def tables() -> Iterator[Table]:
    """For every dataset the comparison and its tuning; for some the ablation and the models that are timed."""
    recipes, chosen = json.loads(RECIPES.read_text(encoding="utf-8")), chosen_stages()
    for name, dataset in DATASETS.items():
        recipe = {**dataset.shared, **recipes[name], "every": EVERY[name]}
        best = chosen.get(name, TRIALS["three 1"])
        blind = (*dataset.changes, WITHOUT_TEST)
        yield _table(name, dataset, _compared(name, recipe, best), changes=dataset.changes)
        tiles = {**recipe, "pattern": TILES}
        yield _table(f"{name}-{TILES}", dataset, _compared(name, tiles, best, TILES), changes=dataset.changes)
        trials = {trial: _staged(recipe, TUNED_AT, asked) for trial, asked in TRIALS.items()}
        yield _table(f"{name}-tuning", dataset, trials, changes=blind, seeds=dataset.tuning_seeds)
        if name in RATES_AT:
            yield _table(f"{name}-rates", dataset, _rates(name, recipe, best), changes=blind, seeds=RATE_SEEDS)
        if name in ABLATED_ON:
            yield _table(f"{name}-ablation", dataset, _ablation(recipe, best), changes=blind, seeds=SEVERAL_SEEDS)
        if name in TIMED:
            yield _table(f"{name}-timed", dataset, _timed(tiles, best), changes=dataset.changes, seeds=(0, 1, 2))


def model_name(kind: str, budget: float, pattern: str = "") -> str:
    """The name of a model in a table."""
    return f"{kind} {pattern} {budget:g}" if pattern else f"{kind} {budget:g}"


def budgets_of(name: str, pattern: str = "") -> tuple[float, ...]:
    """The budgets of a dataset: some have more than the usual ones."""
    return (*BUDGETS, *(() if pattern else MORE_BUDGETS.get(name, ())))


def _compared(name: str, recipe: dict[str, Any], best: dict[str, Any], pattern: str = "") -> dict[str, Any]:
    models: dict[str, Any] = {}
    rates = chosen_stages().get(f"{name}-rates", {})
    for budget in budgets_of(name, pattern):
        with_rate = (
            {kind: {**recipe, "lr": rate} for kind, rate in rates.items()} if budget == RATES_AT.get(name) else {}
        )
        alone, together = with_rate.get(SINGLE, recipe), with_rate.get(STAGED, recipe)
        models[model_name(SINGLE, budget, pattern)] = _single(alone, budget)
        models[model_name(STAGED, budget, pattern)] = _staged(together, budget, best)
        models[model_name(CASCADE, budget, pattern)] = {**_staged(alone, budget, best), "model": CASCADE}
    if name == CURVE_MODEL[0] and not pattern:
        models |= {f"{STAGED} {budget:g}": _staged(recipe, budget, best) for budget in CURVE_BUDGETS}
    return models


def _rates(name: str, recipe: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    """Stages and no stages with each learning rate."""
    models: dict[str, Any] = {}
    for rate in (scale * recipe["lr"] for scale in RATE_SCALES):
        models[f"{SINGLE} {rate:g}"] = _single({**recipe, "lr": rate}, RATES_AT[name])
        models[f"{STAGED} {rate:g}"] = _staged({**recipe, "lr": rate}, RATES_AT[name], best)
    return models


def _timed(tiles: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    models = {model_name(SINGLE, budget, TILES): _single(tiles, budget) for budget in SINGLE_TIMED_BUDGETS}
    return models | {model_name(STAGED, budget, TILES): _staged(tiles, budget, best) for budget in STAGED_TIMED_BUDGETS}


def _ablation(recipe: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    changed: dict[str, dict[str, Any]] = {
        "as chosen": {},
        "entropy decides": {"decide": "entropy"},
        "a learned head decides": {"decide": "head"},
        "two stages": {"stages": "two"},
        "three stages": {"stages": "three"},
        "no attention": {"focus": 0.0},
        "half attention": {"focus": 0.5},
        "full attention": {"focus": 1.0},
        "distill 0.3": {"stage_distill": 0.3},
        "first stage weighs 3": {"first_stage_weight": 3.0},
        "first stage weighs 0.3": {"first_stage_weight": 0.3},
    }
    models = {what: {**_staged(recipe, ABLATED_AT, best), **change} for what, change in changed.items()}
    return {"no stages": _single(recipe, ABLATED_AT), **models}


def _single(recipe: dict[str, Any], budget: float) -> dict[str, Any]:
    """The recipe without gates: RigL from a dense start."""
    widen = spending(budget).widen
    return {
        **recipe, "model": "rigl", "budget": budget, "initial_density": 1.0, "distribution": DISTRIBUTION,
        **({"widen": widen} if widen != 1.0 else {}),
    }  # fmt: skip


def _staged(recipe: dict[str, Any], budget: float, best: dict[str, Any]) -> dict[str, Any]:
    return {**recipe, "model": "staged", "budget": budget, **best}


def _table(name: str, dataset: Dataset, models: dict[str, Any], **rest: Any) -> Table:
    return Table(
        name=name, data=dataset.data, models=models, train=train, data_options=dataset.options,
        quick_rows=dataset.quick_rows, quick={"epochs": 4, "batch": 32, "every": 5}, **rest,
    )  # fmt: skip
