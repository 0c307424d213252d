"""A table of the paper: what it printed, and the recipes that are run for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dynamicgate.lab.runner import Table

Kind = Literal["published", "written", "ours"]
KINDS: dict[Kind, str] = {
    "published": "as published",
    "written": "as written",
    "ours": "ours",
}


@dataclass(frozen=True)
class Recipe:
    """One way to make a table of the paper, and what a reader of its numbers has to know: first of all the faults of
    the published code."""

    kind: Kind
    table: Table
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Section:
    """A table of the paper: the number and title of its section, what it printed of each model, and its recipes.

    training_rows: of the whole dataset; a page says where fewer were used. columns: further columns of the page, from
    their heading to the path of the number in a run.
    """

    name: str
    number: str
    title: str
    training_rows: int
    printed: Mapping[str, Mapping[str, float]]
    recipes: tuple[Recipe, ...]
    columns: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, kind: str) -> Recipe:
        """The recipe of this kind."""
        for recipe in self.recipes:
            if recipe.kind == kind:
                return recipe
        raise ValueError(f"{self.name} has the recipes {', '.join(r.kind for r in self.recipes)}, received {kind!r}")
