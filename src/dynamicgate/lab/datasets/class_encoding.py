"""Encode the column of a table (pandas Series) that says the class of each row as class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

EXACT = 2**53  # above it, not every whole number is a float
REGRESSION = "train a regression on it with --task regression"
FEW_VALUES, LEAST_ROWS = 20, 5  # numbers with more values than that, and fewer rows for each, are hardly classes


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
                f"class; {REGRESSION}, or cut it into classes first (`pandas.cut`)"
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


def refuse_measurements(column: Any, what: str) -> None:
    """Raise ValueError if a column of whole numbers has so many values that it hardly names classes."""
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]

    if isinstance(column.dtype, pd.CategoricalDtype) or not pd.api.types.is_numeric_dtype(column):
        return
    values = column.nunique()
    if values > FEW_VALUES and len(column) < LEAST_ROWS * values:
        raise ValueError(
            f"{what} has {values} different numbers in {len(column)} rows, so that it looks like a measurement; "
            f"{REGRESSION}, or, if every number is a class, give --task classification"
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
