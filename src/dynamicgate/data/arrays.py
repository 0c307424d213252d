"""What a dataset is once it is in memory: rows with labels, and three named parts of them.

The values stay raw (at most scaled by a constant), so that a zero in the file is a zero in the tensor: executed work is
counted on exact zeros. Normalisation constants travel beside the data, and the model applies them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, eq=False)
class Arrays:
    """Rows `x` (float32, [n, features...]) and class numbers `y` (int64, [n]); `check_arrays` builds them safely."""

    x: torch.Tensor
    y: torch.Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def features(self) -> int:
        """Number of features of one flattened row."""
        return math.prod(self.x.shape[1:])

    def take(self, index: torch.Tensor) -> Arrays:
        """The rows at `index` (positions, or a boolean per row), as a copy."""
        return Arrays(self.x[index], self.y[index])


@dataclass(frozen=True, eq=False)
class Splits:
    """A dataset in three disjoint parts, with the constants `(x - mean) / std` that a model uses to normalise it."""

    name: str
    train: Arrays
    valid: Arrays
    test: Arrays
    classes: int
    mean: torch.Tensor | float
    std: torch.Tensor | float

    def __post_init__(self) -> None:
        expected = tuple(self.train.x.shape[1:])
        for part, arrays in (("validation", self.valid), ("test", self.test)):
            received = tuple(arrays.x.shape[1:])
            if received != expected:
                raise ValueError(
                    f"{self.name}: a row of the {part} data has shape {received}, a row of the training data "
                    f"{expected}; give every part the same features in the same order"
                )

    def info(self) -> dict[str, Any]:
        """Sizes and class balance as plain numbers, ready for JSON; `class_counts` has one list for each part."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        counts = {part: torch.bincount(arrays.y, minlength=self.classes).tolist() for part, arrays in parts.items()}
        return {
            "name": self.name,
            **{part: len(arrays) for part, arrays in parts.items()},
            "features": self.train.features,
            "classes": self.classes,
            "majority": max(counts["test"]) / len(self.test),
            "class_counts": counts,
        }
