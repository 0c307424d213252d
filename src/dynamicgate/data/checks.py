"""Turn tensors and numpy arrays into checked `Arrays`, with errors that say what is wrong and how to fix it."""

from __future__ import annotations

import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.targets import NAMES, ArrayLike, check_targets, converted, refuse_non_numeric
from dynamicgate.data.tasks import TaskName


def check_arrays(
    x: ArrayLike,
    y: ArrayLike,
    classes: int | None = None,
    what: str = "training data",
    *,
    least_classes: int = 2,
    task: TaskName = "classification",
) -> Arrays:
    """Checked float32 rows and targets; values are kept as they are (uint8 stays 0..255).

    `classes` bounds the labels (0..classes-1), `what` names the data in error messages, and `least_classes` is how many
    different classes must occur: 2 for training, 1 for a part of a dataset that may lack some. `task` says what y is.
    """
    refuse_non_numeric(x, f"{what}: x", "encode text and categories as numbers")
    refuse_non_numeric(y, f"{what}: y", NAMES)
    features = check_features(x, what)
    return Arrays(
        features, check_targets(y, task, what, rows=len(x), classes=classes, least_classes=least_classes)
    )  # fmt: skip


def check_features(x: ArrayLike, what: str, *, whole: bool = False) -> torch.Tensor:
    """Rows as float32, or with `whole` as int64, which is what token models read."""
    refuse_non_numeric(x, f"{what}: x", "encode text and categories as numbers")
    if x.ndim < 2:
        raise ValueError(
            f"{what}: x must have rows and features (2 dimensions or more), got shape {tuple(x.shape)}; "
            "a single feature is `x.reshape(-1, 1)`, a single row `x.reshape(1, -1)`"
        )
    if 0 in x.shape:
        raise ValueError(f"{what} is empty: x has shape {tuple(x.shape)}; at least one row and one feature are needed")
    if whole:
        return converted(x, torch.int64)
    features = converted(x, torch.float32)
    finite = torch.isfinite(features)
    if not finite.all():
        wrong = torch.nonzero(~finite)
        first = tuple(wrong[0].tolist())
        raise ValueError(
            f"{what}: x must be finite in float32, found {len(wrong)} NaN or infinite values, the first at index "
            f"{first} ({features[first].item()}); drop these rows or fill the values in first"
        )
    return features
