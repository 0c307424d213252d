"""Targets, checked: class numbers, measurements, labels that a row has or has not."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.tasks import IGNORED, TaskName

ArrayLike: TypeAlias = torch.Tensor | npt.NDArray[Any]

# More than any real task has. Larger labels are identifiers or measurements, and counting them would fill memory.
MAX_CLASSES = 1_000_000

RENUMBER = "renumber them with `numpy.unique(y, return_inverse=True)[1]`"
NAMES = (
    "number the classes once for all parts of the data, for example with `numpy.unique(y, return_inverse=True)`, or "
    "use dynamicgate.sklearn, which keeps their names"
)
MEASUREMENTS = (
    "for regression pass loss='mse' (or 'huber', 'quantile') to `fit`; for classes cut them with `numpy.digitize` or "
    "`pandas.cut`"
)


def as_targets(y: Any, what: str) -> ArrayLike:
    """A tensor or a numpy array of numbers, from those, a Series, or a DataFrame with a column for each target."""
    if hasattr(y, "to_numpy"):
        kind = str(getattr(y, "dtype", ""))
        if kind == "category":
            raise ValueError(
                f"{what}: y is categorical, and parts of a table may number categories differently; {NAMES}"
            )
        y = y.to_numpy()
    refuse_non_numeric(y, f"{what}: y", NAMES)
    found: ArrayLike = y
    return found


def check_targets(
    y: ArrayLike,
    task: TaskName,
    what: str,
    *,
    rows: int,
    classes: int | None = None,
    least_classes: int = 2,
    tokens: bool = False,
) -> torch.Tensor:
    """Targets as a task reads them: int64 class numbers, float32 measurements or labels. One entry for each row;
    with `tokens` a row may have a class number for each of its tokens."""
    if task == "classification" and y.ndim != 1 and not (tokens and y.ndim > 1):
        raise ValueError(
            f"{what}: y must have 1 dimension, one class number for each row, got shape {tuple(y.shape)}; flatten a "
            "column with `y.reshape(-1)`, turn one-hot rows into class numbers with `y.argmax(1)`; rows with several "
            "labels need loss='multilabel', several measurements loss='mse'"
        )
    if rows == 0 or len(y) == 0:
        raise ValueError(f"{what} is empty: there are {rows} rows and {len(y)} labels; at least one row is needed")
    if rows != len(y):
        raise ValueError(
            f"{what}: x has {rows} rows but y has {len(y)} labels; give exactly one label for each row of x"
        )
    if task == "classification":
        return _classes(y, classes, least_classes, what)
    if task == "own" and not _is_float(y):
        return converted(y, torch.int64)
    values = converted(y, torch.float32)
    if y.ndim not in (1, 2) and task != "own":
        raise ValueError(f"{what}: y must have 1 or 2 dimensions, got shape {tuple(y.shape)}")
    wrong = ~values.isfinite()
    if wrong.any():
        first = tuple(wrong.nonzero()[0].tolist())
        raise ValueError(
            f"{what}: targets must be finite, found {int(wrong.sum())} that are not, the first at row {first[0]} "
            f"({values[first]}); leave rows without a target out"
        )
    if task == "multilabel":
        _check_labels(values, what)
    return values


def _check_labels(values: torch.Tensor, what: str) -> None:
    if values.ndim != 2:
        raise ValueError(
            f"{what}: several labels per row are a matrix of rows and labels, got shape {tuple(values.shape)}; for one "
            "class per row leave loss= out"
        )
    wrong = ((values != 0) & (values != 1)).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise ValueError(
            f"{what}: a row has a label, 1, or has not, 0; found {values[row, column]:g} at row {row}, column {column}"
        )


def _is_float(y: ArrayLike) -> bool:
    return y.is_floating_point() if isinstance(y, torch.Tensor) else y.dtype.kind == "f"


def _classes(y: ArrayLike, classes: int | None, least_classes: int, what: str) -> torch.Tensor:
    labels = converted(y, torch.float64 if _is_float(y) else torch.int64)
    if _is_float(y):
        broken = ~torch.isfinite(labels) | (labels != labels.round())
        rule = f"{what}: labels must be integers"
        finite = bool(torch.isfinite(labels).all())
        _refuse_rows(labels, broken, rule, MEASUREMENTS if finite else "leave rows without a label out")
    limit = MAX_CLASSES if classes is None else classes
    counted = labels if y.ndim == 1 else labels[labels != IGNORED]
    _refuse_rows(counted.flatten(), (counted < 0).logical_or(counted >= limit).flatten(), _bounds(what, limit))
    found = torch.unique(counted.to(torch.int64))
    if len(found) < least_classes:
        only = f"only class {int(found[0])} in all {len(labels)} rows" if len(found) else "none"
        raise ValueError(
            f"{what}: labels must name at least {least_classes} classes, found {only}; add rows of the other classes"
        )
    return labels.to(torch.int64)


def _bounds(what: str, limit: int) -> str:
    return f"{what}: labels must be 0..{limit - 1}"


def _refuse_rows(
    labels: torch.Tensor, wrong: torch.Tensor, rule: str, fix: str = f"{RENUMBER} or correct them"
) -> None:
    if wrong.any():
        row = int(torch.nonzero(wrong)[0])
        value = labels[row].item()
        shown = int(value) if float(value).is_integer() else value  # "found 12", not "found 12.0"
        raise ValueError(f"{rule}, found {shown} at row {row}; {fix}")


def refuse_non_numeric(value: object, name: str, fix: str) -> None:
    """An error unless it is a dense tensor or an array of real numbers."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor, got layout {value.layout}; use `.to_dense()`")
        numeric, dtype = not value.is_complex(), str(value.dtype)
    elif isinstance(value, np.ndarray):
        numeric, dtype = value.dtype.kind in "biuf", str(value.dtype)
    else:
        raise TypeError(
            f"{name} must be a torch tensor or a numpy array, got {type(value).__name__}; "
            "convert it with `numpy.asarray`"
        )
    if not numeric:
        raise ValueError(f"{name} must hold real numbers, got dtype {dtype}; {fix}")


def converted(value: ArrayLike, dtype: torch.dtype) -> torch.Tensor:
    """As a tensor of this type, sharing memory where that is safe."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype)
    numpy_dtype = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}[dtype]
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite and is reported later
        array = np.asarray(value, dtype=numpy_dtype, order="C")
    # torch warns when it shares read-only memory, such as that of a memory-mapped file.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
