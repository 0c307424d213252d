"""Cut a labelled dataset in two so that both parts look alike, and do it the same way every time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.batching import seeded

TEST_SHARE = 0.20
VALID_SHARE = 0.15
# The test part must not move with the run's seed: results of different runs are compared on it.
TEST_SEED = 20_240_229


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
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        expected = tuple(self.train.x.shape[1:])
        for part, arrays in (("validation", self.valid), ("test", self.test)):
            received = tuple(arrays.x.shape[1:])
            if received != expected:
                raise ValueError(
                    f"{self.name}: a row of the {part} data has shape {received}, a row of the training data "
                    f"{expected}; give every part the same features in the same order"
                )

    def flat(self) -> Splits:
        """With every row as one vector, which is what an MLP reads."""
        if self.train.rows(torch.arange(1)).ndim == 2:
            return self
        parts = {part: getattr(self, part).flat() for part in ("train", "valid", "test")}
        mean, std = (c.flatten() if isinstance(c, torch.Tensor) else c for c in (self.mean, self.std))
        return replace(self, **parts, mean=mean, std=std)

    def info(self) -> dict[str, Any]:
        """Sizes and class balance as plain numbers, ready for JSON; `class_counts` has one list for each part."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        counts = {part: torch.bincount(arrays.y, minlength=self.classes).tolist() for part, arrays in parts.items()}
        return {
            "name": self.name,
            **{part: len(arrays) for part, arrays in parts.items()},
            "features": self.train.features,
            "classes": self.classes,
            **({"class_names": list(self.class_names)} if self.class_names else {}),
            "majority": max(counts["test"]) / len(self.test),
            "class_counts": counts,
        }


def stratified_split(y: torch.Tensor | npt.NDArray[Any], share: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of the rest and of a part of exactly `round(share * n)` rows, each in ascending order.

    Classes keep their proportions to within a row or so; a class of 2 or more rows is in both parts, a class of 1 row
    stays in the rest. Raises ValueError where the sizes make that impossible.
    """
    if not 0 < share < 1:
        raise ValueError(f"share must lie between 0 and 1 (both excluded), got {share}")
    labels = np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y)
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"y must be a 1-dimensional, non-empty list of labels, got shape {labels.shape}")
    _, class_of_row, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = _rows_per_class(counts, round(share * len(labels)))

    # Sorting rows by class in a shuffled order makes each class a contiguous, shuffled run.
    shuffled = seeded(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(class_of_row[shuffled], kind="stable")]
    place_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[by_class] = place_in_class < np.repeat(quota, counts)
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))


def split_arrays(arrays: Arrays, share: float, seed: int, what: str) -> tuple[Arrays, Arrays]:
    """The rest and the part themselves; `what` names the data in the error message."""
    try:
        rest, part = stratified_split(arrays.y, share, seed)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return arrays.take(rest), arrays.take(part)


def _rows_per_class(counts: npt.NDArray[np.intp], total: int) -> npt.NDArray[np.intp]:
    """How many rows of each class the part gets: in proportion, at least one in and one out, `total` in all."""
    divisible = counts >= 2
    least, most = int(divisible.sum()), int((counts - 1).sum())
    if least == 0 or not least <= total <= most:
        raise ValueError(
            f"cannot split {counts.sum()} rows of {len(counts)} classes: the part would have {total} rows, but with "
            f"each class of 2 or more rows on both sides it can have {least} to {most}; "
            "add rows, choose another share, or provide the parts yourself"
        )
    most_of_class = counts - 1
    least_of_class = divisible.astype(np.intp)
    ideal = np.where(divisible, counts * (total / counts[divisible].sum()), 0.0)
    quota = np.clip(np.floor(ideal).astype(np.intp), least_of_class, most_of_class)
    while missing := total - int(quota.sum()):
        step = 1 if missing > 0 else -1
        room = most_of_class - quota if step > 0 else quota - least_of_class
        furthest_first = np.argsort(-step * (ideal - quota), kind="stable")
        quota[furthest_first[room[furthest_first] > 0][: abs(missing)]] += step
    return quota
