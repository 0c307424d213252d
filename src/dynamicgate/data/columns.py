"""Columns of a table (pandas Series) as numbers: `fit_column` finds out how, `encode_column` does it, on any table.

pandas comes with the table; nothing here imports it before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dynamicgate.data.schema import ABSENT, Column

PARTS = ("train", "valid", "test")
STATISTICS = ("mean", "median", "most_frequent")


@dataclass(frozen=True)
class Missing:
    """What stands where a column has no value: a `statistic` of the training rows (for text the most frequent
    category). With `indicator`, a feature says where that is, and in text it is a category of its own."""

    statistic: str
    indicator: bool = False


def missing_option(text: str) -> Missing | None:
    """What an option such as "median" or "median+indicator" means; None for "refuse". "fill" is "mean+indicator"."""
    if text == "refuse":
        return None
    statistic, sign, indicator = ("mean+indicator" if text == "fill" else text).partition("+")
    if statistic not in STATISTICS or (sign and indicator != "indicator"):
        raise ValueError(
            f"missing must be refuse, {', '.join(STATISTICS)}, one of them with +indicator, or fill for "
            f"mean+indicator, received {text!r}"
        )
    return Missing(statistic, bool(sign))


def fit_column(
    column: Any,
    what: str,
    *,
    max_categories: int = 100,
    missing: Missing | None = None,
    train: npt.NDArray[Any] | None = None,
) -> Column:
    """How a column is read: numbers and booleans as one feature, text and categories as one for each value, in sorted
    order. `train` are the rows that missing values are filled in from, all if None; `what` names the table in errors.
    """
    name = str(column.name)
    leave_out = f"leave the column out with drop=[{name!r}] (--data-option drop={name!r})"
    if name.startswith("Unnamed: "):
        raise ValueError(
            f"{what} has a column without a name ({name!r}), usually a row index; {leave_out}, "
            "or write the file with `to_csv(path, index=False)`"
        )
    absent = column.isna().to_numpy()
    if missing is None:
        refuse_missing(
            column,
            what,
            f"have them filled in with missing='median' (--data-option missing=median) or 'fill', or {leave_out}",
        )
    elif absent.all():
        raise ValueError(f"{what}: column {name!r} has no value in any row; {leave_out}")
    trained = np.zeros(len(column), dtype=bool)
    trained[slice(None) if train is None else train] = True
    if is_text(column, what, leave_out):
        texts = as_texts(column[~absent])
        categories = _categories(column[~absent], texts, name, what, max_categories, leave_out, np.flatnonzero(~absent))
        if missing is None:
            return Column(name, categories)
        if missing.indicator and absent.any():
            return Column(name, tuple(sorted({*categories, ABSENT})), ABSENT)
        known = texts[trained[~absent]] if trained[~absent].any() else texts
        return Column(name, categories, _most_frequent(known))
    values = numbers(column, what, leave_out)
    if missing is None:
        return Column(name)
    known = values[~absent & trained].astype(np.float64)
    fill = 0.0 if not len(known) else _statistic(known, missing.statistic)
    return Column(name, fill=float(np.float32(fill)), indicator=missing.indicator and bool(absent.any()))


def encode_column(
    column: Any, read: Column, what: str, *, new_categories: bool = False, notes: list[str] | None = None
) -> npt.NDArray[np.float32]:
    """The features [n, 1 or more] of a column, as `read` says. What it says nothing about is refused; with
    `new_categories`, a category that it does not know is none of those it knows. What was done is added to `notes`."""
    notes = [] if notes is None else notes
    name = read.name
    absent = column.isna().to_numpy()
    if absent.any():
        if read.fill is None:
            refuse_missing(column, what, "the model has nothing to fill in for them: fill them in, or train it on rows "
                           "with missing=median")  # fmt: skip
        if not read.indicator and read.fill != ABSENT:
            notes.append(f"column {name!r}: {absent.sum()} missing values filled in with {read.fill!r:.40}")
    if read.categories is not None:
        return _one_hot(column, absent, read, what, new_categories, notes)
    if is_text(column, what, "correct the file"):
        raise ValueError(
            f"{what}: column {name!r} holds text ({str(column[~absent].iloc[0])!r:.40}), and the model reads numbers "
            "from it; correct these values"
        )
    values = numbers(column, what, "drop these rows")
    filled = np.where(absent, np.float32(read.fill or 0.0), values)[:, None]
    return np.concatenate([filled, absent[:, None]], axis=1).astype(np.float32) if read.indicator else filled


def absent_column(read: Column, rows: int) -> npt.NDArray[np.float32]:
    """The features of a column that a table does not have, filled in for every row."""
    if read.categories is not None:
        row = [float(category == read.fill) for category in read.categories]
    else:
        row = [float(read.fill or 0.0), *([1.0] if read.indicator else [])]
    return np.tile(np.asarray(row, dtype=np.float32), (rows, 1))


def as_texts(column: Any) -> npt.NDArray[Any]:
    """The values of a column without missing ones as texts. Whole numbers are written without a point: a file that
    lacks a value somewhere makes its whole numbers floats, and 7 stays the same category."""
    return np.asarray([_as_text(value) for value in column.tolist()], dtype=object)


def refuse_missing(column: Any, what: str, remedy: str) -> None:
    """Raise if the column has no value in some row; `remedy` ends the message."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        raise ValueError(
            f"{what}: column {str(column.name)!r} has no value in {len(missing)} of {len(column)} rows, the first at "
            f"row {missing[0]} (counting from 0); {remedy}"
        )


def is_text(column: Any, what: str, remedy: str) -> bool:
    """Whether a column holds text or categories; False for numbers and booleans; anything else is refused."""
    from pandas.api.types import infer_dtype  # type: ignore[import-untyped, unused-ignore]

    kind = infer_dtype(column)
    if kind in ("string", "categorical"):
        return True
    if kind not in ("boolean", "integer", "floating", "mixed-integer-float", "decimal", "empty"):
        raise ValueError(
            f"{what}: column {str(column.name)!r} holds {kind} values, which are neither numbers, booleans nor text; "
            f"convert them, or {remedy}"
        )
    return False


def numbers(column: Any, what: str, remedy: str) -> npt.NDArray[np.float32]:
    """A column of numbers or booleans in float32, NaN where it has no value."""
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and is reported below
        values = column.to_numpy(np.float64, na_value=np.nan).astype(np.float32)
    infinite = np.flatnonzero(~np.isfinite(values) & ~column.isna().to_numpy())
    if len(infinite):
        raise ValueError(
            f"{what}: column {str(column.name)!r} must be finite in float32, found {column.iloc[infinite[0]]} at row "
            f"{infinite[0]} (counting from 0); correct these values, or {remedy}"
        )
    return np.asarray(values)


def listed(names: Collection[object], most: int = 5) -> str:
    """The first few names, and how many more there are."""
    shown = ", ".join(f"{str(name)!r:.60}" for name in list(names)[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def _one_hot(
    column: Any, absent: npt.NDArray[np.bool_], read: Column, what: str, new_categories: bool, notes: list[str]
) -> npt.NDArray[np.float32]:
    assert read.categories is not None
    texts = np.full(len(column), read.fill, dtype=object)
    texts[~absent] = as_texts(column[~absent])
    position = {category: k for k, category in enumerate(read.categories)}
    places = np.asarray([position.get(text, -1) for text in texts], dtype=np.int64)
    if (places < 0).any():
        unknown = sorted(set(texts[places < 0].tolist()))
        found = f"column {read.name!r}: {(places < 0).sum()} of {len(column)} rows hold {listed(unknown)}"
        if not new_categories:
            raise ValueError(
                f"{what}: {found}, which the model never saw; it knows {listed(read.categories)}. Correct them, or "
                "have them read as none of the known with --allow new-categories (allow=)"
            )
        notes.append(f"{found}, which the model never saw: read as none of the known categories")
    features = np.zeros((len(column), len(read.categories)), dtype=np.float32)
    rows = np.flatnonzero(places >= 0)
    features[rows, places[rows]] = 1
    return features


def _categories(
    column: Any,
    texts: npt.NDArray[Any],
    name: str,
    what: str,
    max_categories: int,
    leave_out: str,
    rows: npt.NDArray[np.intp],
) -> tuple[str, ...]:
    """The categories of a text column, in sorted order: numbers by value, everything else as text."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    found = sorted(set(texts.tolist()))
    if isinstance(column.dtype, pd.CategoricalDtype) and getattr(column.cat.categories.dtype, "kind", "O") in "iuf":
        found.sort(key=float)
    if set(found) in ({"train", "test"}, set(PARTS)):
        raise ValueError(
            f"{what}: column {name!r} says which part a row belongs to; use it with split_column={name!r}, "
            f"or {leave_out}"
        )
    not_numbers = [value for value in found if not _is_number(value)]
    if 0 < len(not_numbers) < len(found) / 2:  # one "?" or "n/a" makes pandas read a numeric column as text
        raise ValueError(
            f"{what}: column {name!r} is text although most of its values are numbers; the first that is not is "
            f"{not_numbers[0]!r}, at row {rows[np.flatnonzero(texts == not_numbers[0])[0]]} (counting from 0); "
            f"correct these values, or {leave_out}"
        )
    if len(found) > max_categories:
        raise ValueError(
            f"{what}: column {name!r} is text with {len(found)} different values, and each would become a feature; the "
            f"limit is max_categories={max_categories}: raise it, encode the column as numbers, or {leave_out}"
        )
    return tuple(found)


def _statistic(values: npt.NDArray[np.float64], name: str) -> float:
    if name == "most_frequent":
        found, counts = np.unique(values, return_counts=True)
        return float(found[counts.argmax()])
    return float(np.median(values) if name == "median" else values.mean())


def _most_frequent(texts: npt.NDArray[Any]) -> str:
    found, counts = np.unique(texts.astype(str), return_counts=True)
    return str(found[counts.argmax()])


def _as_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
