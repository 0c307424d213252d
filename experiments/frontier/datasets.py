"""The datasets: which networks, how long they train, with which seeds, and what tuning may see of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Change, Job, Table
from experiments.frontier.train import train
from experiments.paper.cifar10 import MIRRORED
from experiments.paper.published import IN_MEMORY

SEVERAL_SEEDS = (100, 101, 102)
MANY_SEEDS = tuple(range(100, 108))
TEN_SEEDS = tuple(range(10))
TUNED_AGAIN = ("gate", "small", "static")  # in the fourth round of protocol.md
Train = Callable[[Job, Splits], dict[str, Any]]


@dataclass(frozen=True)
class Dataset:
    """A dataset, the dense network that costs are relative to, and its training.

    every: optimizer steps between two mask updates; even pruning, which begins after a fifth of training, then updates
    its masks 50 times or more. fifth_round: whether `gate` is tuned and run in the fifth round of protocol.md.
    """

    data: str
    hidden: tuple[int, ...]
    epochs: int
    batch: int
    lr: float
    every: int
    activation: str = "relu"
    options: dict[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    quick_rows: int = 400
    seeds: tuple[int, ...] = TEN_SEEDS
    tuning_seeds: tuple[int, ...] = (100,)  # several where there are few validation rows
    fifth_round: bool = False

    def tuning_seeds_of(self, method: str) -> tuple[int, ...]:
        """The tuning seeds of a method: more for those of the fourth round, where one is not enough."""
        return MANY_SEEDS if method in TUNED_AGAIN and len(self.tuning_seeds) > 1 else self.tuning_seeds

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
    "digits": Dataset(
        "digits", (128,), epochs=60, batch=32, lr=4e-3, every=24, tuning_seeds=SEVERAL_SEEDS, fifth_round=True
    ),
    "mnist": Dataset("mnist", (256,), epochs=25, batch=512, lr=5e-3, every=28),
    "mnist-wide": Dataset("mnist", (1024,), epochs=12, batch=512, lr=3e-3, every=13),
    "cifar10": Dataset(
        "cifar10", (1024, 512), epochs=40, batch=1024, lr=1.5e-3, every=18, changes=(MIRRORED,), seeds=TEN_SEEDS[:5]
    ),
    "tiny-imagenet": Dataset(
        "tiny-imagenet", (256,), epochs=30, batch=512, lr=5e-4, every=11, changes=(IN_MEMORY,), seeds=TEN_SEEDS[:5]
    ),
    "speech": Dataset(
        "speech-commands",
        (512, 256),
        epochs=40,
        batch=64,
        lr=1e-3,
        every=12,
        tuning_seeds=SEVERAL_SEEDS,
        fifth_round=True,
    ),
    "pbmc3k": Dataset(
        "pbmc3k",
        (1000, 500),
        epochs=30,
        batch=128,
        lr=1e-3,
        every=4,
        activation="gelu",
        options={"labels": "louvain"},
        tuning_seeds=SEVERAL_SEEDS,
        fifth_round=True,
    ),
}


def at_budget(method: str, budget: float) -> str:
    """The name of a model in a table."""
    return f"{method} {budget:g}"


def method_of(model: str) -> tuple[str, float | None]:
    """Method and budget of a model in a table; None at full cost."""
    method, _, budget = model.rpartition(" ") if model[-1].isdigit() else (model, "", "")
    return method, float(budget) if budget else None


def table_of(
    name: str,
    dataset: Dataset,
    models: dict[str, Any],
    *,
    blind: bool,
    train: Train = train,
    own_seeds: dict[str, tuple[int, ...]] | None = None,
) -> Table:
    """A table of models on a dataset; a blind one sees validation rows in place of test rows. own_seeds: of models that
    have others than the rest."""
    return Table(
        name=name, data=dataset.data, models=models, train=train, data_options=dataset.options,
        quick_rows=dataset.quick_rows, quick={"epochs": 4, "batch": 32, "every": 4},
        changes=(*dataset.changes, WITHOUT_TEST) if blind else dataset.changes,
        seeds=dataset.tuning_seeds if blind else dataset.seeds, own_seeds=own_seeds or {},
    )  # fmt: skip
