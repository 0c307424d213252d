"""What an experiment runs: tables of models and seeds on a dataset, and the jobs that they consist of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.splits import Splits

Step = Callable[[], None]


@dataclass(frozen=True)
class Change:
    """What is done to the parts of a dataset before training, under the name that identifies runs on it."""

    name: str
    apply: Callable[[Splits], Splits]


@dataclass(frozen=True)
class Table:
    """Models and seeds on one dataset, trained in one way. Their runs are stored in one file.

    name: tells tables of an experiment apart, and is the path of that file, such as "mnist/ours".
    models: what each model is asked for, as JSON values; None is a default. The first is the one others are timed
        against.
    train: from a job and its data to its run, as `run_one` returns it. step: from a job and its data to a function that
        takes one training step of its model, to time it; None does without. Workers import both by name, so they are
        functions of a module, or partial applications of such.
    own_seeds: of models that have others than `seeds`.
    changes: what is done to the data, in order. revision: a higher one makes all runs anew.
    quick: settings that a quick run replaces; quick_rows: training rows it uses.
    load: from a job and the data folder to its data, which have `sizes()`; None: `Splits` of the dataset `data`.
    """

    name: str
    data: str
    models: Mapping[str, Mapping[str, Any]]
    train: Callable[[Job, Any], dict[str, Any]]
    step: Callable[[Job, Splits], Step] | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    own_seeds: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    data_options: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 1})
    quick_rows: int = 2000
    revision: int = 1
    load: Callable[[Job, Path | None], Any] | None = None

    def seeds_of(self, model: str) -> tuple[int, ...]:
        """The seeds of a model."""
        return self.own_seeds.get(model, self.seeds)

    def all_seeds(self) -> list[int]:
        """The seeds of all models, each once."""
        return list(dict.fromkeys([*self.seeds, *(seed for model in self.models for seed in self.seeds_of(model))]))


@dataclass(frozen=True)
class Job:
    """One run of a table: a model and a seed. work, device: where it is made, which is no part of its identity."""

    table: Table
    model: str
    seed: int
    quick: bool = False
    work: Path = Path()
    device: str = "auto"

    @property
    def folder(self) -> Path:
        """Its own folder."""
        return self.work / self.table.name / f"{self.model.replace(' ', '-')}-s{self.seed}-{self.hash}"

    @property
    def settings(self) -> dict[str, Any]:
        """What its model is asked for."""
        return {**self.table.models[self.model], **(self.table.quick if self.quick else {})}

    @property
    def hash(self) -> str:
        """Identifies the run: everything that is asked for and decides its result, without what keeps its default."""
        table = self.table
        asked: dict[str, Any] = {
            "table": table.name,
            "data": table.data,
            "model": self.model,
            "seed": self.seed,
            "settings": {name: value for name, value in self.settings.items() if value is not None},
        }
        if table.data_options:
            asked["data_options"] = dict(table.data_options)
        if table.changes:
            asked["changes"] = [change.name for change in table.changes]
        if table.revision != 1:
            asked["revision"] = table.revision
        if self.quick:
            asked["rows"] = table.quick_rows
        return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=4).hexdigest()

    def of(self, model: str) -> Job:
        """The same with another model."""
        return replace(self, model=model)


@dataclass(frozen=True)
class Experiment:
    """Tables that belong together, and where their runs and results are: below `root`, a checkout.

    Quick runs are kept apart, where they cannot be mistaken for others.
    """

    name: str
    tables: tuple[Table, ...]
    root: Path
    quick: bool = False

    @property
    def work(self) -> Path:
        """The folder in which runs are made; not in version control."""
        return self.root / "runs" / (f"{self.name}-quick" if self.quick else self.name)

    @property
    def results(self) -> Path:
        """The folder with one file of finished runs for each table."""
        return self.work / "results" if self.quick else self.root / "experiments" / "results" / self.name

    def table(self, name: str) -> Table:
        """The table of this name."""
        for table in self.tables:
            if table.name == name:
                return table
        known = ", ".join(table.name for table in self.tables)
        raise ValueError(f"unknown table {name!r}: the tables of {self.name} are {known}")

    def jobs(
        self, tables: Iterable[Table] | None = None, *, seeds: int | None = None, device: str = "auto"
    ) -> list[Job]:
        """All runs of these tables (None: of all), or those of the first few seeds. The seeds of a table follow one
        another, so that data are read once."""
        if seeds is not None and seeds < 1:
            raise ValueError(f"at least one seed is needed, received {seeds}")
        count = 1 if self.quick and seeds is None else seeds
        return [
            Job(table, model, seed, self.quick, self.work, device)
            for table in (self.tables if tables is None else tables)
            for seed in table.all_seeds()
            for model in table.models
            if seed in table.seeds_of(model)[:count]
        ]


def fewer_rows(splits: Splits, rows: int) -> Splits:
    """At most `rows` training rows and half as many of the other parts, the first of a fixed shuffle."""

    def some(part: Arrays, most: int) -> Arrays:
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
        return part if len(part) <= most else part.take(order[:most])

    parts = some(splits.train, rows), some(splits.valid, rows // 2), some(splits.test, rows // 2)
    return replace(splits, train=parts[0], valid=parts[1], test=parts[2])
