"""A table of the paper as data: what it printed, and the recipes that are run for it.

Recipe files lie outside the package, in `experiments/paper` of a checkout: each holds one `TABLE`, or several `TABLES`.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch

from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.splits import Splits

Kind = Literal["published", "written", "ours"]
KINDS: dict[Kind, str] = {
    "published": "as published",
    "written": "as written",
    "ours": "ours",
}
FOLDER = Path("experiments") / "paper"
Step = Callable[[], None]


@dataclass(frozen=True)
class Change:
    """What is done to the parts of a dataset before anything else, under the name that identifies its runs."""

    name: str
    apply: Callable[[Splits], Splits]


@dataclass(frozen=True)
class Recipe:
    """One way to make a table: which data, which models, and everything that decides their results.

    models: what each model is asked for, as JSON values. train: from a `Job` to its run, as `compare.run_one` has it.
    step: from a `Job` to a function that takes one training step of its model, for the clock; None does without.
    changes: what is done to the parts of the data, in order. revision: one more makes all runs anew.
    quick: settings that `--quick` replaces; quick_rows: training rows it takes.
    remarks: what a reader of the numbers has to know, faults of the published code first of all.
    """

    kind: Kind
    data: str
    models: Mapping[str, Mapping[str, Any]]
    train: Callable[[Job, Splits], dict[str, Any]]
    step: Callable[[Job, Splits], Step] | None = None
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    data_options: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Change, ...] = ()
    quick: Mapping[str, Any] = field(default_factory=lambda: {"epochs": 1})
    quick_rows: int = 2000
    revision: int = 1
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table of the paper: its section, its title, what it printed of each model, and the recipes run for it.

    whole: rows of training data in the whole set; fewer are said to be a subset. columns: further columns of the page,
    by heading the path of the number in a run.
    """

    name: str
    section: str
    title: str
    paper: Mapping[str, Mapping[str, float]]
    recipes: tuple[Recipe, ...]
    whole: int
    columns: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, kind: str) -> Recipe:
        """The recipe of this kind."""
        for recipe in self.recipes:
            if recipe.kind == kind:
                return recipe
        raise ValueError(f"{self.name} has the recipes {', '.join(r.kind for r in self.recipes)}, received {kind!r}")


@dataclass(frozen=True)
class Job:
    """One run: a model of a recipe with one seed, where to work, and on what."""

    table: Table
    recipe: Recipe
    model: str
    seed: int
    quick: bool = False
    folder: Path = Path()
    device: str = "auto"

    @property
    def table_name(self) -> str:
        """The results table that its run belongs to."""
        return self.table.name if len(self.table.recipes) == 1 else f"{self.table.name}/{self.recipe.kind}"

    @property
    def name(self) -> str:
        """Where its files are: found by all that decides the result."""
        model = self.model.replace(" ", "-")
        return f"{self.table.name}/{self.recipe.kind}/{model}-s{self.seed}-{self.hash}"

    @property
    def settings(self) -> dict[str, Any]:
        """What its model is asked for."""
        return {**self.recipe.models[self.model], **(self.recipe.quick if self.quick else {})}

    @property
    def hash(self) -> str:
        """Identifies the run: everything that is asked for and decides its result, without what keeps its default."""
        recipe = self.recipe
        asked: dict[str, Any] = {
            "table": self.table_name,
            "data": recipe.data,
            "model": self.model,
            "seed": self.seed,
            "settings": {name: value for name, value in self.settings.items() if value is not None},
        }
        if recipe.data_options:
            asked["data_options"] = dict(recipe.data_options)
        if recipe.changes:
            asked["changes"] = [change.name for change in recipe.changes]
        if recipe.revision != 1:
            asked["revision"] = recipe.revision
        if self.quick:
            asked["rows"] = recipe.quick_rows
        return hashlib.blake2b(json.dumps(asked, sort_keys=True).encode(), digest_size=4).hexdigest()

    def of(self, model: str) -> Job:
        """The same with another model."""
        return replace(self, model=model)


def jobs_of(tables: Iterable[Table], *, seeds: int | None, quick: bool, kind: str | None = None) -> list[Job]:
    """All runs that are asked for: the seeds of a recipe one after the other, so that data are read once."""
    if seeds is not None and seeds < 1:
        raise ValueError(f"at least one seed is needed, received {seeds}")
    count = 1 if quick and seeds is None else seeds
    return [
        Job(table, recipe, model, seed, quick)
        for table in tables
        for recipe in ([table.recipe(kind)] if kind else table.recipes)
        for seed in recipe.seeds[:count]
        for model in recipe.models
    ]


def fewer_rows(splits: Splits, rows: int) -> Splits:
    """At most `rows` training rows and half as many of the other parts, the first of a fixed shuffle: `--quick`."""

    def some(part: Arrays, most: int) -> Arrays:
        order = torch.randperm(len(part), generator=torch.Generator().manual_seed(0))
        return part if len(part) <= most else part.take(order[:most])

    parts = some(splits.train, rows), some(splits.valid, rows // 2), some(splits.test, rows // 2)
    return replace(splits, train=parts[0], valid=parts[1], test=parts[2])


def find_folder(given: Path | None = None) -> Path:
    """The folder with the recipe files: as given, else that of the checkout in which the command runs."""
    folder = given if given is not None else Path.cwd() / FOLDER
    if not any(folder.glob("*.py")):
        raise ValueError(
            f"no recipe files in {folder}: `dynamicgate paper` runs in a checkout of DynamicGate, which has them in "
            f"{FOLDER.as_posix()}, or takes their folder with --recipes DIR"
        )
    return folder.resolve()


def load_tables(folder: Path, name: str = "all") -> list[Table]:
    """The tables of a recipe folder: all of them in the paper's order, or the one that is called `name`."""
    tables = _tables(folder)
    if name == "all":
        return list(tables.values())
    if name not in tables:
        raise ValueError(f"unknown table {name!r}: the tables are {', '.join(tables)}, or all")
    return [tables[name]]


def load_module(folder: Path, stem: str) -> ModuleType:
    """One file of a recipe folder, which is a package of its own: its files may import each other."""
    package = f"dynamicgate_recipes_{hashlib.blake2b(str(folder).encode(), digest_size=4).hexdigest()}"
    if package not in sys.modules:
        module = ModuleType(package)
        module.__path__ = [str(folder)]
        sys.modules[package] = module
    return importlib.import_module(f"{package}.{stem}")


@lru_cache
def _tables(folder: Path) -> dict[str, Table]:
    modules = [load_module(folder, path.stem) for path in sorted(folder.glob("*.py")) if path.stem != "__init__"]
    found = [module.TABLE for module in modules if hasattr(module, "TABLE")]
    found += [table for module in modules for table in getattr(module, "TABLES", ())]
    return {table.name: table for table in sorted(found, key=lambda table: table.section)}
