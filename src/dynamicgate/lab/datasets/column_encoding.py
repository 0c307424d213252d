"""The columns of a table as numbers: class numbers of one, features of another. A column is a pandas Series."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

PARTS = ("train", "valid", "test")


def class_numbers(column: Any, what: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class numbers 0..C-1 of a column without missing values, and their names: numbers by size, text by letters.

    `what` names the column in errors.
    """
    values = _values(column)
    if values.dtype.kind == "f":
        broken = np.flatnonzero(~np.isfinite(values) | (values != np.floor(values)))
        if len(broken):
            raise ValueError(
                f"{what} holds {values[broken[0]]:g} at row {broken[0]}, which is a measurement and not a class; "
                "cut it into classes first (`pandas.cut`)"
            )
        values = values.astype(np.int64)
    names, y = np.unique(values, return_inverse=True)
    if len(names) < 2:
        raise ValueError(
            f"{what} must name at least 2 classes, found only {str(names[0])!r} in all {len(y)} rows; "
            "add rows of the other classes"
        )
    return y.astype(np.int64), tuple(map(str, names))


def encode(column: Any, what: str, most_categories: int) -> tuple[npt.NDArray[np.float32], list[str]]:
    """The features [n, 1 or more] that a column becomes, and their names; `what` names the table in errors.

    Numbers and booleans are one feature. Text and categories are one for each value that occurs, in sorted order.
    """
    from pandas.api.types import infer_dtype  # type: ignore[import-untyped, unused-ignore]

    name = str(column.name)
    leave_out = f"leave the column out with drop=[{name!r}]"
    if name.startswith("Unnamed: "):
        raise ValueError(
            f"{what} has a column without a name ({name!r}), most often a row index; {leave_out}, "
            "or write the file with `to_csv(path, index=False)`"
        )
    refuse_missing(column, what, f"fill them in, looking at training rows only, or {leave_out}")
    kind = infer_dtype(column)
    if kind in ("string", "categorical"):
        return _one_hot(_values(column), name, what, most_categories, leave_out)
    if kind not in ("boolean", "integer", "floating", "mixed-integer-float", "decimal"):
        raise ValueError(
            f"{what}: column {name!r} holds {kind} values, which are neither numbers nor booleans nor text; "
            f"convert them, or {leave_out}"
        )
    with np.errstate(over="ignore"):  # too large for float32 becomes infinite, and is reported as such
        values = column.to_numpy(np.float64).astype(np.float32)
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise ValueError(
            f"{what}: column {name!r} must be finite in float32, found {column.iloc[wrong[0]]} at row {wrong[0]} "
            f"(counting from 0); correct these values, or {leave_out}"
        )
    return values[:, None], [name]


def refuse_missing(column: Any, what: str, mend: str) -> None:
    """Raise where the column has no value in some row."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        raise ValueError(
            f"{what}: column {str(column.name)!r} has no value in {len(missing)} of {len(column)} rows, the first at "
            f"row {missing[0]} (counting from 0); {mend}"
        )


def _values(column: Any) -> npt.NDArray[Any]:
    """As an array that sorts: numbers as numbers, everything else as text."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return np.asarray(column.astype(str).to_list(), dtype=str)
    return column.to_numpy(np.float64 if pd.api.types.is_float_dtype(column) else np.int64)


def _one_hot(
    values: npt.NDArray[Any], name: str, what: str, most_categories: int, leave_out: str
) -> tuple[npt.NDArray[np.float32], list[str]]:
    found, numbers = np.unique(values, return_inverse=True)
    if set(found.tolist()) in ({"train", "test"}, set(PARTS)):
        raise ValueError(
            f"{what}: column {name!r} says which part a row belongs to; use it with split_column={name!r}, "
            f"or {leave_out}"
        )
    strays = [value for value in found.tolist() if not _is_number(value)]
    if 0 < len(strays) < len(found) / 2:  # a "?" or "n/a" among numbers makes pandas read the whole column as text
        raise ValueError(
            f"{what}: column {name!r} is text although most of its values are numbers; the first that is not is "
            f"{strays[0]!r}, at row {np.flatnonzero(values == strays[0])[0]} (counting from 0); "
            f"correct these values, or {leave_out}"
        )
    if len(found) > most_categories:
        raise ValueError(
            f"{what}: column {name!r} is text with {len(found)} different values, and each would become a feature; the "
            f"limit is most_categories={most_categories}: raise it, encode the column as numbers, or {leave_out}"
        )
    features = np.zeros((len(values), len(found)), dtype=np.float32)
    features[np.arange(len(values)), numbers] = 1
    return features, [f"{name}={value}" for value in found.tolist()]


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
