"""Which networks, how long they train, and every method at every budget.

Two tables for each dataset: its name, and `NAME-tuning`. Tuning sees training and validation rows only. It tries the
same learning rates and dropouts with every method, at one budget; the best go into chosen.json, from which the first
table takes its settings.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Table
from dynamicgate.presets.sparsify import DISTRIBUTION, spending
from experiments.frontier.train import train
from experiments.paper.cifar10 import MIRRORED
from experiments.paper.published import IN_MEMORY

BUDGETS = (0.02, 0.05, 0.1, 0.2, 0.4)
OURS = "gate+rigl"
OURS_IN_TILES = "gate+rigl 16x1"  # for speed: vector units handle 16 outputs that share an input at once
UNGATED = "rigl from dense"  # the recipe without its gates: what they add or cost
CONTROLS = ("small", "pruned", "static", "random", "rigl", "set", "gate", "switch")
AT_A_BUDGET = (*CONTROLS, UNGATED, OURS, OURS_IN_TILES)
AT_FULL_COST = ("dense", "dropout")
TUNED_AT = 0.1
SEVERAL_SEEDS = (100, 101, 102)
LR_SCALES = (0.7, 1.5)  # relative to the dataset's own learning rate
DROPOUTS = (0.0, 0.2)
CHOSEN = Path(__file__).with_name("chosen.json")


@dataclass(frozen=True)
class Dataset:
    """A dataset, the dense network that costs are relative to, and its training."""

    data: str
    hidden: tuple[int, ...]
    epochs: int
    batch: int
    lr: float
    activation: str = "relu"
    options: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    quick_rows: int = 400
    tuning_seeds: tuple[int, ...] = (100,)  # several where there are few validation rows

    @property
    def shared(self) -> dict[str, Any]:
        """What all methods are asked for."""
        return {
            "hidden": list(self.hidden), "epochs": self.epochs, "batch": self.batch, "lr": self.lr,
            "activation": self.activation, "dropout": 0.0,
        }  # fmt: skip


def without_test(splits: Splits) -> Splits:
    """Validation rows in place of the test rows, so that nothing can be chosen by test rows."""
    return replace(splits, test=splits.valid)


WITHOUT_TEST = Change("without_test", without_test)
DATASETS = {
    "digits": Dataset("digits", (128,), epochs=60, batch=32, lr=4e-3, tuning_seeds=SEVERAL_SEEDS),
    "mnist": Dataset("mnist", (256,), epochs=25, batch=512, lr=5e-3),
    "mnist-wide": Dataset("mnist", (1024,), epochs=12, batch=512, lr=3e-3),
    "cifar10": Dataset("cifar10", (1024, 512), epochs=40, batch=1024, lr=1.5e-3, changes=(MIRRORED,)),
    "tiny-imagenet": Dataset("tiny-imagenet", (256,), epochs=30, batch=512, lr=5e-4, changes=(IN_MEMORY,)),
    "speech": Dataset("speech-commands", (512, 256), epochs=40, batch=64, lr=1e-3, tuning_seeds=SEVERAL_SEEDS),
    "pbmc3k": Dataset(
        "pbmc3k",
        (1000, 500),
        epochs=30,
        batch=128,
        lr=1e-3,
        activation="gelu",
        options={"labels": "louvain"},
        tuning_seeds=SEVERAL_SEEDS,
    ),
}


def at_budget(method: str, budget: float) -> str:
    """The name of a model in a table."""
    return f"{method} {budget:g}"


def method_of(model: str) -> tuple[str, float | None]:
    """Method and budget of a model in a table; None at full cost."""
    method, _, budget = model.rpartition(" ") if model[-1].isdigit() else (model, "", "")
    return method, float(budget) if budget else None


def tables() -> Iterator[Table]:
    """Both tables of every dataset."""
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    for name, dataset in DATASETS.items():
        yield table_of(name, dataset, models_of(dataset, chosen.get(name, {})), changes=dataset.changes)
        yield table_of(
            f"{name}-tuning",
            dataset,
            trials_of(dataset),
            changes=(*dataset.changes, WITHOUT_TEST),
            seeds=dataset.tuning_seeds,
        )


def models_of(dataset: Dataset, best: dict[str, Any]) -> dict[str, Any]:
    """Every method at every budget, with the settings that tuning chose."""
    ours = best.get(OURS, {})
    best = {
        **best,
        OURS_IN_TILES: {**ours, "pattern": "16x1"},
        UNGATED: {**ours, "initial_density": 1.0, "distribution": DISTRIBUTION},
    }
    models = {method: {**dataset.shared, **best.get(method, {})} for method in AT_FULL_COST}
    for method in AT_A_BUDGET:
        for budget in BUDGETS:
            asked = {"model": method.split(" ")[0], "budget": budget, **best.get(method, {})}
            if method == UNGATED and (widen := spending(budget).widen) != 1.0:
                asked["widen"] = widen  # as wide as the recipe with gates
            models[at_budget(method, budget)] = {**dataset.shared, **asked}
    return models


def trials_of(dataset: Dataset) -> dict[str, Any]:
    """The learning rates and dropouts that are tried with every method."""
    return {
        f"{method} {scale * dataset.lr:g} {dropout:g}": {
            **dataset.shared, "model": method, "budget": TUNED_AT, "lr": scale * dataset.lr, "dropout": dropout,
        }
        for method in (*AT_FULL_COST, *CONTROLS, OURS)
        for scale in LR_SCALES
        for dropout in DROPOUTS
        if dropout == 0.0 or method not in ("dense", "small")  # these have none
    }  # fmt: skip


def table_of(name: str, dataset: Dataset, models: dict[str, Any], **rest: Any) -> Table:
    """A table of models on a dataset."""
    return Table(
        name=name, data=dataset.data, models=models, train=train, data_options=dataset.options,
        quick_rows=dataset.quick_rows, quick={"epochs": 2, "batch": 32}, **rest,
    )  # fmt: skip
