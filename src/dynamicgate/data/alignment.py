"""Bring data into the form that a model's `Schema` describes: columns, categories and classes by name.

What the model was not made for is refused with a sentence, unless it is allowed by name (`ALLOWED`); what was done is
said in notes. Mean, standard deviation and filled-in values are those of the model, never of the new data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dynamicgate.choices import ALLOWED as ALLOWED
from dynamicgate.data.columns import absent_column, as_texts, encode_column, listed
from dynamicgate.data.schema import Column, Schema


class Encoded(NamedTuple):
    """Rows as the model reads them, and what was done to them."""

    x: npt.NDArray[np.float32]
    notes: list[str]


class Numbered(NamedTuple):
    """Class numbers of the model, -1 for rows whose class it does not know, and what was found."""

    y: npt.NDArray[np.int64]
    notes: list[str]


def check_allowed(allow: Collection[str]) -> frozenset[str]:
    """The names as a set; one that is not in `ALLOWED` is an error that lists them."""
    given = frozenset([allow] if isinstance(allow, str) else allow)
    if unknown := sorted(given - ALLOWED.keys()):
        raise ValueError(f"{unknown[0]!r} cannot be allowed: expected some of {', '.join(ALLOWED)}")
    return given


def encode_table(frame: Any, schema: Schema, what: str = "the table", *, allow: Collection[str] = ()) -> Encoded:
    """The columns of a pandas DataFrame that the model reads, in its order and encoded as in its training.

    Columns that it does not read are ignored, and named in the notes. `what` names the table in errors.
    """
    allowed = check_allowed(allow)
    if not schema.columns:
        raise ValueError("the model has no names of columns: it was trained on arrays, so give it an array")
    if schema.preprocess != "none":
        raise ValueError(f"{what} is a table, and the model was trained on counts of cells: give it AnnData (.h5ad)")
    notes: list[str] = []
    present = [str(name) for name in frame.columns]
    wanted = {column.name for column in schema.columns}
    if twice := [name for name, count in Counter(present).items() if count > 1 and name in wanted]:
        raise ValueError(f"{what} has two columns named {twice[0]!r}, so that it is not clear which the model reads")
    by_name = dict(zip(present, frame.columns, strict=True))
    absent = [column for column in schema.columns if column.name not in by_name]
    refuse_absent(absent, schema, what, allowed, "column", notes)
    ignored = [name for name in present if name not in wanted and name != schema.target]
    if ignored:
        notes.append(f"not read by the model: {listed(ignored)}")
    parts = [
        absent_column(column, len(frame))
        if column.name not in by_name
        else encode_column(
            frame[by_name[column.name]], column, what, new_categories="new-categories" in allowed, notes=notes
        )
        for column in schema.columns
    ]
    return Encoded(np.concatenate(parts, axis=1), notes)


def number_classes(names: Sequence[str], schema: Schema, what: str, *, allow: Collection[str] = ()) -> Numbered:
    """The number that the model has for the class of each row; `what` names the column in errors.

    Rows of classes it does not know are refused; with "new-classes" they are -1, to be left out of the score.
    """
    number = {name: k for k, name in enumerate(schema.classes)}
    y = np.asarray([number.get(name, -1) for name in names], dtype=np.int64)
    notes = []
    if (y < 0).any():
        unknown = sorted({name for name, found in zip(names, y, strict=True) if found < 0})
        found = f"{(y < 0).sum()} of {len(y)} rows are of {listed(unknown)}"
        if "new-classes" not in check_allowed(allow) or (y < 0).all():
            known = f"its classes are {listed(schema.classes, 12)}"
            raise ValueError(
                f"{what}: {found}, which the model cannot answer; {known}. Rename or remove them"
                + ("" if (y < 0).all() else ", or leave them out of the score with --allow new-classes (allow=)")
            )
        notes.append(f"{found}, which the model cannot answer: left out of the score")
    if rare := [name for k, name in enumerate(schema.classes) if not (y == k).any()]:
        notes.append(f"classes of the model without a row here: {listed(rare, 12)}")
    return Numbered(y, notes)


def class_texts(column: Any) -> list[str]:
    """The classes in a pandas column without missing values, as the texts that schemas name them by."""
    return list(as_texts(column))


def refuse_absent(
    absent: Sequence[Column], schema: Schema, what: str, allowed: frozenset[str], word: str, notes: list[str]
) -> None:
    """Raise if the data lack what the model reads, unless it may be filled in, which is then noted."""
    if not absent:
        return
    named = listed([f"{column.name} ({column.alias})" if column.alias else column.name for column in absent])
    if len(absent) == len(schema.columns):
        raise ValueError(f"{what} has none of the {word}s that the model reads: {named}")
    lacks = f"{len(absent)} of the {len(schema.columns)} {word}s that the model reads: {named}"
    if nothing := [column.name for column in absent if column.fill is None]:
        raise ValueError(f"{what} lacks {lacks}; the model has nothing to fill in for {listed(nothing)}")
    if "missing-columns" not in allowed:
        raise ValueError(
            f"{what} lacks {lacks}. To fill in what the model has for them, give --allow missing-columns (allow=)"
        )
    notes.append(f"filled in {lacks}")
