"""`Schema`: what a model knows of its data: the columns it reads and how, its classes by name, what its budget counts.

It is a part of the model file. `data.alignment` brings other data into the form that it describes, by name. Mean and
standard deviation are not in it: they are a layer of the model (`nn.Normalize`), so that they come from the training
rows whatever is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields
from typing import Any

KINDS = ("table", "cells", "arrays")
TASKS = ("classification", "regression", "multilabel")
PREPROCESSING = ("none", "counts")
ABSENT = "missing"
"""The category of a row that has no value, and the feature that says where a number is missing."""
_ATTRIBUTE = "_dynamicgate_schema"


@dataclass(frozen=True)
class Column:
    """One column that a model reads: a number, or text that becomes one feature for each of its `categories`.

    fill: stands where the column has no value; None: such rows are refused.
    indicator: a number has a second feature, which says where it is missing.
    alias: another name that the column goes by, such as the symbol of a gene that is named by its id.
    """

    name: str
    categories: tuple[str, ...] | None = None
    fill: float | str | None = None
    indicator: bool = False
    alias: str | None = None

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the features that it becomes, in order."""
        if self.categories is not None:
            return tuple(f"{self.name}={category}" for category in self.categories)
        return (self.name, f"{self.name}={ABSENT}") if self.indicator else (self.name,)


@dataclass(frozen=True)
class Schema:
    """What a model knows of its data.

    kind: what its rows are; "table", "cells" (genes are the columns), or "arrays" without names.
    columns: what it reads, in order; none for arrays. features: how many numbers one row is.
    classes: names of its outputs, in order; none where they have none. outputs: how many there are.
    target: the column that the classes were in; split_column: the one that said which rows are for training.
    preprocess: "counts": each cell was scaled to 10,000 counts over `measured_genes` genes, and log1p taken.
    least: the smallest value in the training rows of cells: data on another scale are told by it.
    budget, budget_unit: what it was trained to cost, and what this counts; dense_macs: the MACs of the dense network
        that the budget is a fraction of.
    source, rows: the name of the data it was trained on, and how many rows of it.
    """

    kind: str
    features: int
    outputs: int
    task: str = "classification"
    columns: tuple[Column, ...] = ()
    classes: tuple[str, ...] = ()
    target: str | None = None
    split_column: str | None = None
    preprocess: str = "none"
    measured_genes: int | None = None
    least: float | None = None
    budget: float | None = None
    budget_unit: str | None = None
    dense_macs: int | None = None
    source: str | None = None
    rows: int | None = None

    def __post_init__(self) -> None:
        for name, known in (("kind", KINDS), ("task", TASKS), ("preprocess", PREPROCESSING)):
            if getattr(self, name) not in known:
                raise ValueError(f"{name} must be one of {', '.join(known)}, received {getattr(self, name)!r:.60}")
        for name in ("features", "outputs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, received {getattr(self, name)}")
        _refuse_twice([column.name for column in self.columns], "the column")
        _refuse_twice(self.classes, "the class")
        for column in self.columns:
            _check_column(column)
        made = sum(len(column.features) for column in self.columns)
        if self.columns and made != self.features:
            raise ValueError(f"its columns become {made} features, expected the {self.features} of a row")
        if self.classes and len(self.classes) != self.outputs:
            raise ValueError(f"{len(self.classes)} classes are named, expected {self.outputs}")

    @property
    def feature_names(self) -> tuple[str, ...]:
        """The names of all features, in order; none for arrays."""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def shown_names(self) -> tuple[str, ...]:
        """The names of all features as a reader knows them: a column of one feature by its alias, where it has one."""
        return tuple(
            column.alias if column.alias and len(column.features) == 1 else name
            for column in self.columns
            for name in column.features
        )

    def to_json(self) -> dict[str, Any]:
        """JSON values, without what keeps its default; a column that is a plain number is its name."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) != f.default}
        if self.columns:
            found["columns"] = [_column_to_json(column) for column in self.columns]
        if self.classes:
            found["classes"] = list(self.classes)
        return found


def read_schema(value: Any) -> Schema:
    """What `Schema.to_json` wrote. Anything else raises ValueError with what is wrong: files come from anyone."""
    given = _checked(value, _SCHEMA, Schema, "a schema")
    if "columns" in given:
        given["columns"] = tuple(_read_column(column) for column in given["columns"])
    return Schema(**given)


def put_schema_(model: object, schema: Schema | None) -> None:
    """Let `model` carry a schema, which `save` writes and `schema_of` returns; None takes it off."""
    if schema is not None:
        setattr(model, _ATTRIBUTE, schema)
    elif hasattr(model, _ATTRIBUTE):
        delattr(model, _ATTRIBUTE)


def schema_of(model: object) -> Schema | None:
    """The schema that a model carries: one that `load` read from its file, or that `put_schema_` gave it."""
    found = getattr(model, _ATTRIBUTE, None)
    return found if isinstance(found, Schema) else None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**53


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


_Check = tuple[Callable[[Any], bool], str]
_TEXT: _Check = (_is_text, "a text")
_COUNT: _Check = (_is_count, "a whole number of 0 or more")
_NUMBER: _Check = (_is_number, "a finite number")
_TEXTS: _Check = (_is_texts, "a list of texts")
_SCHEMA: Mapping[str, _Check] = {
    **dict.fromkeys(("kind", "task", "target", "split_column", "preprocess", "budget_unit", "source"), _TEXT),
    **dict.fromkeys(("features", "outputs", "measured_genes", "dense_macs", "rows"), _COUNT),
    **dict.fromkeys(("least", "budget"), _NUMBER),
    "classes": _TEXTS,
    "columns": (lambda value: isinstance(value, list), "a list of columns"),
}
_COLUMN: Mapping[str, _Check] = {
    "name": _TEXT,
    "alias": _TEXT,
    "categories": _TEXTS,
    "fill": (lambda value: _is_text(value) or _is_number(value), "a text or a finite number"),
    "indicator": (lambda value: isinstance(value, bool), "true or false"),
}


def _checked(value: Any, known: Mapping[str, _Check], cls: type[Any], what: str) -> dict[str, Any]:
    """The fields of `cls` in a JSON object, each of the kind that is expected; lists become tuples."""
    if not isinstance(value, dict):
        raise ValueError(f"expected {what} as fields by name, received {value!r:.60}")
    for name, held in value.items():
        if name not in known:
            raise ValueError(f"{what} has no field {name!r:.60}: upgrade dynamicgate, or write the file again")
        check, expected = known[name]
        if not check(held):
            raise ValueError(f"{name} must be {expected}, received {held!r:.60}")
    if absent := [f.name for f in fields(cls) if f.default is NO_DEFAULT and f.name not in value]:
        raise ValueError(f"{what} lacks {', '.join(absent)}")
    return {name: tuple(held) if isinstance(held, list) else held for name, held in value.items()}


def _read_column(value: Any) -> Column:
    return Column(value) if isinstance(value, str) else Column(**_checked(value, _COLUMN, Column, "a column"))


def _column_to_json(column: Column) -> Any:
    found = {f.name: getattr(column, f.name) for f in fields(column) if getattr(column, f.name) != f.default}
    if column.categories is not None:
        found["categories"] = list(column.categories)
    return column.name if found.keys() == {"name"} else found


def _check_column(column: Column) -> None:
    what = f"column {column.name!r:.60}"
    if column.categories is None:
        if isinstance(column.fill, str):
            raise ValueError(f"{what} holds numbers, and would be filled with the text {column.fill!r:.60}")
        if column.indicator and column.fill is None:
            raise ValueError(f"{what} says where values are missing, and not what stands there")
        return
    if not column.categories:
        raise ValueError(f"{what} has no categories")
    _refuse_twice(column.categories, f"{what}: the category")
    if column.indicator or (column.fill is not None and column.fill not in column.categories):
        raise ValueError(f"{what} must be filled with one of its categories")


def _refuse_twice(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        seen: set[str] = set()
        twice = next(name for name in names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"{what} {twice!r:.60} is named twice")
