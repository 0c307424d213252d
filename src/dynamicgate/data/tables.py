"""Rows from DataFrames, scipy sparse matrices and AnnData, none of which has to be installed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dynamicgate.data.arrays import Rows
from dynamicgate.data.checks import check_features
from dynamicgate.data.sparse_rows import SparseRows

SHOWN = 5  # names in an error


def is_table(value: object) -> bool:
    """Whether it is a DataFrame, a scipy sparse matrix, AnnData or a numpy array."""
    return isinstance(value, np.ndarray) or is_frame(value) or _is_sparse(value) or is_annotated(value)


def table_rows(table: Any, what: str) -> torch.Tensor | Rows:
    """The rows of a table as float32. Those of a sparse matrix stay sparse: only a batch is ever dense."""
    if is_annotated(table):
        table = table.X
    if is_frame(table):
        return check_features(_frame_values(table, what), what)
    return SparseRows(table, f"{what}: x") if _is_sparse(table) else check_features(table, what)


def take_column(table: Any, name: str, what: str) -> tuple[Any, Any]:
    """A DataFrame without the column `name`, and that column; AnnData, and that column of its `obs`."""
    columns = table.obs if is_annotated(table) else table
    if not is_frame(columns):
        raise TypeError(f"{what}: y={name!r} names a column, and {type(table).__name__} has no names: pass the values")
    if name not in columns.columns:
        raise ValueError(f"{what}: there is no column {name!r}; there are {_listed(map(str, columns.columns))}")
    return (table if columns is not table else table.drop(columns=[name])), columns[name]


def _frame_values(frame: Any, what: str) -> Any:
    text = [str(name) for name, kind in frame.dtypes.items() if getattr(kind, "kind", "O") not in "biuf"]
    if text:
        raise ValueError(
            f"{what}: columns {_listed(text)} do not hold numbers; encode them first, for example with "
            "`pandas.get_dummies` or scikit-learn's OneHotEncoder"
        )
    values = frame.to_numpy(dtype=np.float32, na_value=np.nan)
    missing = np.isnan(values).sum(0)
    if missing.any():
        found = [f"{name} ({count})" for name, count in zip(frame.columns, missing, strict=True) if count]
        raise ValueError(
            f"{what}: values are missing in columns {_listed(found)}; drop these rows or fill the values in first, for "
            "example with scikit-learn's SimpleImputer"
        )
    return values


def _listed(names: Any) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def is_frame(value: object) -> bool:
    """Whether it is a DataFrame of pandas, or like one."""
    return hasattr(value, "columns") and hasattr(getattr(value, "dtypes", None), "items") and hasattr(value, "to_numpy")


def _is_sparse(value: object) -> bool:
    return hasattr(value, "tocsr") and not isinstance(value, torch.Tensor)


def is_annotated(value: object) -> bool:
    """Whether it is AnnData."""
    return all(hasattr(value, name) for name in ("X", "obs", "var"))
