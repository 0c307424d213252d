"""Turn tensors and numpy arrays into checked `Arrays`, with errors that say what is wrong and how to fix it."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.arrays import Arrays

ArrayLike: TypeAlias = torch.Tensor | npt.NDArray[Any]

# More than any real task has. Larger labels are identifiers or measurements, and counting them would fill memory.
MAX_CLASSES = 1_000_000

RENUMBER = "renumber them with `numpy.unique(y, return_inverse=True)[1]`"


def check_arrays(
    x: ArrayLike, y: ArrayLike, classes: int | None = None, what: str = "training data", *, least_classes: int = 2
) -> Arrays:
    """Checked float32 rows and int64 labels; values are kept as they are (uint8 stays 0..255).

    `classes` bounds the labels (0..classes-1), `what` names the data in error messages, and `least_classes` is how many
    different classes must occur: 2 for training, 1 for a part of a dataset that may lack some.
    """
    _refuse_non_numeric(x, f"{what}: x", "encode text and categories as numbers")
    _refuse_non_numeric(y, f"{what}: y", RENUMBER)
    if x.ndim < 2:
        raise ValueError(
            f"{what}: x must have rows and features (2 dimensions or more), got shape {tuple(x.shape)}; "
            "a single feature is `x.reshape(-1, 1)`, a single row `x.reshape(1, -1)`"
        )
    if y.ndim != 1:
        raise ValueError(
            f"{what}: y must have 1 dimension, one class number for each row, got shape {tuple(y.shape)}; "
            "flatten a column with `y.reshape(-1)`, turn one-hot rows into class numbers with `y.argmax(1)`"
        )
    if 0 in x.shape or len(y) == 0:
        raise ValueError(
            f"{what} is empty: x has shape {tuple(x.shape)} and y has {len(y)} labels; "
            "at least one row and one feature are needed"
        )
    if len(x) != len(y):
        raise ValueError(
            f"{what}: x has {len(x)} rows but y has {len(y)} labels; give exactly one label for each row of x"
        )
    return Arrays(_features(x, what), _labels(y, classes, least_classes, what))


def _refuse_non_numeric(value: object, name: str, fix: str) -> None:
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            raise ValueError(f"{name} must be a dense tensor, got layout {value.layout}; use `.to_dense()`")
        numeric, dtype = not value.is_complex(), str(value.dtype)
    elif isinstance(value, np.ndarray):
        numeric, dtype = value.dtype.kind in "biuf", str(value.dtype)
    else:
        raise TypeError(
            f"{name} must be a torch tensor or a numpy array, got {type(value).__name__}; "
            "convert it with `numpy.asarray` (a sparse matrix with `.toarray()`)"
        )
    if not numeric:
        raise ValueError(f"{name} must hold real numbers, got dtype {dtype}; {fix}")


def _converted(value: ArrayLike, dtype: torch.dtype) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().to(dtype)
    numpy_dtype = {torch.float32: np.float32, torch.float64: np.float64, torch.int64: np.int64}[dtype]
    with np.errstate(over="ignore"):  # what is too large for float32 becomes infinite and is reported below
        array = np.asarray(value, dtype=numpy_dtype, order="C")
    # torch warns when it shares read-only memory, such as that of a memory-mapped file.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _features(x: ArrayLike, what: str) -> torch.Tensor:
    features = _converted(x, torch.float32)
    finite = torch.isfinite(features)
    if not finite.all():
        wrong = torch.nonzero(~finite)
        first = tuple(wrong[0].tolist())
        raise ValueError(
            f"{what}: x must be finite in float32, found {len(wrong)} NaN or infinite values, the first at index "
            f"{first} ({features[first].item()}); drop these rows or fill the values in first"
        )
    return features


def _labels(y: ArrayLike, classes: int | None, least_classes: int, what: str) -> torch.Tensor:
    is_float = y.is_floating_point() if isinstance(y, torch.Tensor) else y.dtype.kind == "f"
    labels = _converted(y, torch.float64 if is_float else torch.int64)
    if is_float:
        _refuse_rows(labels, ~torch.isfinite(labels) | (labels != labels.round()), f"{what}: labels must be integers")
    limit = MAX_CLASSES if classes is None else classes
    _refuse_rows(labels, (labels < 0) | (labels >= limit), f"{what}: labels must be 0..{limit - 1}")
    labels = labels.to(torch.int64)
    found = torch.unique(labels)
    if len(found) < least_classes:
        raise ValueError(
            f"{what}: labels must name at least {least_classes} classes, found only class {int(found[0])} "
            f"in all {len(labels)} rows; add rows of the other classes"
        )
    return labels


def _refuse_rows(labels: torch.Tensor, wrong: torch.Tensor, rule: str) -> None:
    if wrong.any():
        row = int(torch.nonzero(wrong)[0])
        value = labels[row].item()
        shown = int(value) if float(value).is_integer() else value  # "found 12", not "found 12.0"
        raise ValueError(f"{rule}, found {shown} at row {row}; {RENUMBER} or correct them")
