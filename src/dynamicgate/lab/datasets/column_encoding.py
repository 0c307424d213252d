"""Encode the columns of a table (pandas Series) as numbers: one as class numbers, the others as features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.lab.datasets.splits import PARTS


def encode_classes(column: Any, what: str) -> tuple[npt.NDArray[np.int64], tuple[str, ...]]:
    """Class numbers 0..C-1 of a column without missing values, and the class names in that order.

    Numeric classes are sorted by value, text alphabetically. `what` names the column in errors.
    """
    values = _sortable(column)
    if values.dtype.kind == "f":
        fractional = np.flatnonzero(~np.isfinite(values) | (values != np.floor(values)))
        if len(fractional):
            raise ValueError(
                f"{what} holds {values[fractional[0]]:g} at row {fractional[0]}, which is a measurement and not a "
                "class; cut it into classes first (`pandas.cut`)"
            )
        if len(values) and np.abs(values).max() > EXACT:
            raise ValueError(
                f"{what} holds {values[np.abs(values).argmax()]:g}: numbers above 2**53 are rounded, so that different "
                "classes become one; write the classes as text"
            )
        values = values.astype(np.int64)
    names, y = np.unique(values, return_inverse=True)
    if len(names) < 2:
        raise ValueError(
            f"{what} must name at least 2 classes, found only {str(names[0])!r} in all {len(y)} rows; "
            "add rows of the other classes"
        )
    return y.astype(np.int64), tuple(map(str, names))


MISSING = "missing"
EXACT = 2**53  # above it, not every whole number is a float


def encode_features(
    column: Any, what: str, max_categories: int, fill: bool = False
) -> tuple[npt.NDArray[np.float32], list[str]]:
    """The features [n, 1 or more] that a column becomes, and their names; `what` names the table in errors.

    A column of numbers or booleans is one feature. Text and categories are one-hot: one feature for each value that
    occurs, in sorted order. Missing values are refused, unless they are to be filled in: then they are a category of
    their own, and a column of numbers has a second feature that says where it has none; see `fill_missing`.
    """
    from pandas.api.types import infer_dtype  # type: ignore[import-untyped, unused-ignore]

    name = str(column.name)
    leave_out = f"leave the column out with drop=[{name!r}]"
    if name.startswith("Unnamed: "):
        raise ValueError(
            f"{what} has a column without a name ({name!r}), usually a row index; {leave_out}, "
            "or write the file with `to_csv(path, index=False)`"
        )
    absent = column.isna().to_numpy()
    if not fill:
        refuse_missing(column, what, f"have them filled in with missing=fill, or {leave_out}")
    elif absent.all():
        raise ValueError(f"{what}: column {name!r} has no value in any row; {leave_out}")
    kind = infer_dtype(column)
    if kind in ("string", "categorical"):
        if absent.any():
            column = column.astype(object).where(~absent, MISSING)
        return _one_hot(_sortable(column), name, what, max_categories, leave_out)
    if kind not in ("boolean", "integer", "floating", "mixed-integer-float", "decimal"):
        raise ValueError(
            f"{what}: column {name!r} holds {kind} values, which are neither numbers, booleans nor text; "
            f"convert them, or {leave_out}"
        )
    with np.errstate(over="ignore"):  # a value too large for float32 becomes infinite, and is reported below
        values = column.to_numpy(np.float64).astype(np.float32)
    infinite = np.flatnonzero(~np.isfinite(values) & ~absent)
    if len(infinite):
        raise ValueError(
            f"{what}: column {name!r} must be finite in float32, found {column.iloc[infinite[0]]} at row {infinite[0]} "
            f"(counting from 0); correct these values, or {leave_out}"
        )
    if absent.any():
        return np.stack([np.where(absent, np.float32(0), values), absent], axis=1).astype(np.float32), [
            name,
            f"{name}={MISSING}",
        ]
    return values[:, None], [name]


def fill_missing(parts: Sequence[torch.Tensor], feature_names: Sequence[str]) -> None:
    """Put the mean over the training rows, the first of `parts`, where numbers are missing, in place."""
    for at, name in enumerate(feature_names[1:], start=1):
        if name != f"{feature_names[at - 1]}={MISSING}":  # a number, and behind it where it is missing
            continue
        train = parts[0]
        known = train[:, at] == 0
        mean = train[known, at - 1].double().mean() if bool(known.any()) else torch.zeros((), dtype=torch.float64)
        for x in parts:
            x[x[:, at] == 1, at - 1] = mean.float()


def refuse_missing(column: Any, what: str, remedy: str) -> None:
    """Raise if the column has no value in some row; `remedy` ends the message."""
    missing = np.flatnonzero(column.isna().to_numpy())
    if len(missing):
        raise ValueError(
            f"{what}: column {str(column.name)!r} has no value in {len(missing)} of {len(column)} rows, the first at "
            f"row {missing[0]} (counting from 0); {remedy}"
        )


def _sortable(column: Any) -> npt.NDArray[Any]:
    """The column as an array that sorts sensibly: numbers as numbers, everything else as text."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(column.cat.categories.dtype)
    if pd.api.types.is_bool_dtype(column) or not pd.api.types.is_numeric_dtype(column):
        return np.asarray(column.astype(str).to_list(), dtype=str)
    if pd.api.types.is_float_dtype(column):
        return column.to_numpy(np.float64)
    return column.to_numpy(np.uint64 if pd.api.types.is_unsigned_integer_dtype(column) else np.int64)


def _one_hot(
    values: npt.NDArray[Any], name: str, what: str, max_categories: int, leave_out: str
) -> tuple[npt.NDArray[np.float32], list[str]]:
    found, numbers = np.unique(values, return_inverse=True)
    if set(found.tolist()) in ({"train", "test"}, set(PARTS)):
        raise ValueError(
            f"{what}: column {name!r} says which part a row belongs to; use it with split_column={name!r}, "
            f"or {leave_out}"
        )
    not_numbers = [value for value in found.tolist() if not _is_number(value)]
    if 0 < len(not_numbers) < len(found) / 2:  # one "?" or "n/a" makes pandas read a numeric column as text
        raise ValueError(
            f"{what}: column {name!r} is text although most of its values are numbers; the first that is not is "
            f"{not_numbers[0]!r}, at row {np.flatnonzero(values == not_numbers[0])[0]} (counting from 0); "
            f"correct these values, or {leave_out}"
        )
    if len(found) > max_categories:
        raise ValueError(
            f"{what}: column {name!r} is text with {len(found)} different values, and each would become a feature; the "
            f"limit is max_categories={max_categories}: raise it, encode the column as numbers, or {leave_out}"
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
