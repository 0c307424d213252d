"""Which networks, how long they train, and every method at every budget.

Two tables for each data set: its name, and `NAME-tuning`. Tuning sees training and validation rows only. It tries the
same learning rates and dropouts with every method, at one budget; the best go into chosen.json, which the first table
takes its settings from.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Recipe, Table
from dynamicgate.lab.runner.jobs import load_module
from dynamicgate.presets import DISTRIBUTION, spending

from .train import train

PAPER = Path(__file__).resolve().parents[1] / "paper"

BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.4)
OURS = "gate+rigl"
OURS_IN_CELLS = "gate+rigl 16x1"  # for the clock: 16 outputs that share an input are what vector units can do at once
UNGATED = "rigl from dense"  # the recipe without its gates: what they add or cost
CONTROLS = ("small", "pruned", "static", "random", "rigl", "set", "gate", "switch")
AT_A_BUDGET = (*CONTROLS, UNGATED, OURS, OURS_IN_CELLS)
AT_FULL_COST = ("dense", "dropout")
TUNED_AT = 0.1
SEVERAL = (100, 101, 102)
RATES = (0.7, 1.5)  # times the set's own
DROPOUTS = (0.0, 0.2)
CHOSEN = Path(__file__).with_name("chosen.json")


@dataclass(frozen=True)
class Set:
    """A data set, the dense network that costs are relative to, and its training."""

    data: str
    hidden: tuple[int, ...]
    epochs: int
    batch: int
    lr: float
    activation: str = "relu"
    options: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    quick_rows: int = 400
    tuned_with: tuple[int, ...] = (100,)  # seeds: few validation rows need several

    @property
    def shared(self) -> dict[str, Any]:
        """What all methods are asked for."""
        return {
            "hidden": list(self.hidden), "epochs": self.epochs, "batch": self.batch, "lr": self.lr,
            "activation": self.activation, "dropout": 0.0,
        }  # fmt: skip


def without_test(splits: Splits) -> Splits:
    """What is measured at the end of a run are validation rows: test rows cannot be looked at."""
    return replace(splits, test=splits.valid)


WITHOUT_TEST = Change("without_test", without_test)
SETS = {
    "digits": Set("digits", (128,), epochs=60, batch=32, lr=4e-3, tuned_with=SEVERAL),
    "mnist": Set("mnist", (256,), epochs=25, batch=512, lr=5e-3),
    "mnist-wide": Set("mnist", (1024,), epochs=12, batch=512, lr=3e-3),
    "cifar10": Set(
        "cifar10", (1024, 512), epochs=40, batch=1024, lr=1.5e-3, changes=(load_module(PAPER, "cifar10").MIRRORED,)
    ),
    "tiny-imagenet": Set(
        "tiny-imagenet", (256,), epochs=30, batch=512, lr=5e-4, changes=(load_module(PAPER, "published").IN_MEMORY,)
    ),
    "speech": Set("speech-commands", (512, 256), epochs=40, batch=64, lr=1e-3, tuned_with=SEVERAL),
    "pbmc3k": Set(
        "pbmc3k",
        (1000, 500),
        epochs=30,
        batch=128,
        lr=1e-3,
        activation="gelu",
        options={"labels": "louvain"},
        tuned_with=SEVERAL,
    ),
}


def at_a_budget(method: str, budget: float) -> str:
    """The name of a model of the table."""
    return f"{method} {budget:g}"


def wider(budget: float) -> dict[str, float]:
    """As wide as the recipe with gates, where that is wider than asked for."""
    widen = spending(budget).widen
    return {} if widen == 1.0 else {"widen": widen}


def tables() -> Iterator[Table]:
    """Both tables of every set."""
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    for position, (name, one) in enumerate(SETS.items()):
        best = chosen.get(name, {})
        best |= {OURS_IN_CELLS: {**best.get(OURS, {}), "pattern": "16x1"}}
        best |= {UNGATED: {**best.get(OURS, {}), "initial_density": 1.0, "distribution": DISTRIBUTION}}
        models = {method: {**one.shared, **best.get(method, {})} for method in AT_FULL_COST}
        models |= {
            at_a_budget(method, budget): {
                **one.shared,
                "model": method.split(" ")[0],
                "budget": budget,
                **best.get(method, {}),
                **(wider(budget) if method == UNGATED else {}),
            }
            for method in AT_A_BUDGET
            for budget in BUDGETS
        }
        trials = {
            f"{method} {rate * one.lr:g} {dropout:g}": {
                **one.shared, "model": method, "budget": TUNED_AT, "lr": rate * one.lr, "dropout": dropout,
            }
            for method in (*AT_FULL_COST, *CONTROLS, OURS)
            for rate in RATES
            for dropout in DROPOUTS
            if dropout == 0.0 or method not in ("dense", "small")  # these have none
        }  # fmt: skip
        yield table(name, one, models, f"{position}", changes=one.changes, seeds=(0, 1, 2, 3, 4))
        yield table(
            f"{name}-tuning",
            one,
            trials,
            f"{position} tuning",
            changes=(*one.changes, WITHOUT_TEST),
            seeds=one.tuned_with,
        )


def table(name: str, one: Set, models: dict[str, Any], section: str, **rest: Any) -> Table:
    """A table of one recipe."""
    recipe = Recipe(
        kind="ours", data=one.data, models=models, train=train, data_options=one.options, quick_rows=one.quick_rows,
        quick={"epochs": 2, "batch": 32}, **rest,
    )  # fmt: skip
    return Table(name=name, section=section, title=name, paper={}, recipes=(recipe,), whole=0)


TABLES = tuple(tables())
