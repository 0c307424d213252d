"""Training, validation and test parts of a dataset, and the stratified split that makes them reproducibly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.batching import seeded
from dynamicgate.data.columns import PARTS as PARTS
from dynamicgate.data.schema import Schema
from dynamicgate.display import ShownAsText

TEST_FRACTION = 0.20
VALID_FRACTION = 0.15  # of what is not test
# The test part must not depend on the run's seed: it is what runs are compared on.
TEST_SEED = 20_240_229


@dataclass(frozen=True, eq=False, repr=False)
class Splits(ShownAsText):
    """A dataset in three disjoint parts, with the constants of `(x - mean) / std` that a model normalises with, and the
    schema that a model trained on it keeps; None where columns have no names.

    groups: by part, the group of every row, such as its batch or donor, where a column says it.
    """

    name: str
    train: Arrays
    valid: Arrays
    test: Arrays
    classes: int
    mean: torch.Tensor | float
    std: torch.Tensor | float
    class_names: tuple[str, ...] = ()
    schema: Schema | None = None
    groups: Mapping[str, tuple[str, ...]] | None = None

    def __post_init__(self) -> None:
        expected = tuple(self.train.x.shape[1:])
        for part, arrays in (("validation", self.valid), ("test", self.test)):
            received = tuple(arrays.x.shape[1:])
            if received != expected:
                raise ValueError(
                    f"{self.name}: a row of the {part} data has shape {received}, a row of the training data "
                    f"{expected}; give every part the same features in the same order"
                )

    def _brief(self) -> str:
        rows = ", ".join(f"{len(getattr(self, part)):,} {part}" for part in PARTS)
        task = "regression" if self.is_regression else f"{self.classes} classes"
        return f"{self.name}, {rows}, {self.train.features:,} features, {task}"

    def __str__(self) -> str:
        names = f" ({', '.join(self.class_names)})" if self.class_names else ""
        return f"{self._brief()}{names}"

    def flat(self) -> Splits:
        """The same data with every row as one vector, which is what an MLP reads."""
        if self.train.rows(torch.arange(1)).ndim == 2:
            return self
        parts = {part: getattr(self, part).flat() for part in PARTS}
        mean, std = (c.flatten() if isinstance(c, torch.Tensor) else c for c in (self.mean, self.std))
        return replace(self, **parts, mean=mean, std=std)

    def described(self) -> Schema:
        """The schema of these data; without names of columns where they have none."""
        if self.schema is not None and self.schema.features == self.train.features:
            return self.schema
        names = self.class_names if len(set(self.class_names)) == self.classes else ()
        return Schema(
            "arrays", self.train.features, self.classes, classes=names, source=self.name, rows=len(self.train)
        )

    @property
    def is_regression(self) -> bool:
        """Whether targets are measurements."""
        return self.schema is not None and self.schema.task == "regression"

    def info(self) -> dict[str, Any]:
        """Sizes and class balance as plain numbers, ready for JSON; `class_counts` has one list for each part. Of a
        regression, mean and standard deviation of the target in the training rows instead."""
        parts = {"train": self.train, "valid": self.valid, "test": self.test}
        if self.is_regression:
            y = self.train.y.double()
            return {
                "name": self.name,
                **{part: len(arrays) for part, arrays in parts.items()},
                "features": self.train.features,
                "task": "regression",
                "target": {"mean": float(y.mean()), "std": float(y.std(correction=0))},
            }
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


def stratified_split(
    y: torch.Tensor | npt.NDArray[Any], fraction: float, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two lists of row indices, each ascending: the rest, and a part of exactly `round(fraction * n)` rows.

    Classes keep their proportions to within about a row. A class of two or more rows is in both parts; a class of one
    row stays in the rest. Raises ValueError if the sizes make that impossible.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction must lie between 0 and 1 (both excluded), got {fraction}")
    labels = np.asarray(y.cpu() if isinstance(y, torch.Tensor) else y)
    if labels.ndim != 1 or len(labels) == 0:
        raise ValueError(f"y must be a 1-dimensional, non-empty list of labels, got shape {labels.shape}")
    _, class_of_row, counts = np.unique(labels, return_inverse=True, return_counts=True)
    quota = _rows_per_class(counts, round(fraction * len(labels)))

    # Sorting rows by class in a shuffled order makes each class a contiguous, shuffled run.
    shuffled = seeded(seed).permutation(len(labels))
    by_class = shuffled[np.argsort(class_of_row[shuffled], kind="stable")]
    rank_in_class = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    chosen = np.zeros(len(labels), dtype=bool)
    chosen[by_class] = rank_in_class < np.repeat(quota, counts)
    return torch.from_numpy(np.flatnonzero(~chosen)), torch.from_numpy(np.flatnonzero(chosen))


def split_arrays(arrays: Arrays, fraction: float, seed: int, what: str) -> tuple[Arrays, Arrays]:
    """The rest and the part as `Arrays`; `what` names the data in error messages."""
    try:
        rest, part = stratified_split(arrays.y, fraction, seed)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    return arrays.take(rest), arrays.take(part)


def part_positions(
    y: torch.Tensor, given: npt.NDArray[Any] | None, seed: int, what: str, class_names: tuple[str, ...]
) -> dict[str, torch.Tensor]:
    """The positions of the rows of each part. `given` says which part each row belongs to. A part it lacks is drawn
    from the training rows: test is a fixed 20 %, validation 15 % of the rest by `seed`."""
    found = {"train": torch.arange(len(y))}
    if given is not None:
        found = {part: torch.from_numpy(np.flatnonzero(given == part)) for part in set(given.tolist())}
        if untrained := set(y.tolist()) - set(y[found["train"]].tolist()):
            names = ", ".join(repr(class_names[number]) for number in sorted(untrained))
            raise ValueError(f"{what}: the training rows of its split column lack the classes {names}")
    for part, fraction, drawn_by in (("test", TEST_FRACTION, TEST_SEED), ("valid", VALID_FRACTION, seed)):
        if part in found:
            continue
        try:
            rest, drawn = stratified_split(y[found["train"]], fraction, drawn_by)
        except ValueError as error:
            raise ValueError(f"{what} ({'test' if part == 'test' else 'validation'} part): {error}") from None
        found[part], found["train"] = found["train"][drawn], found["train"][rest]
    return found


def read_groups(column: Any, what: str) -> tuple[str, ...]:
    """The group of every row, as text; `column` is one of pandas."""
    missing = int(column.isna().sum())
    if missing:
        raise ValueError(
            f"{what}: {missing} of {len(column)} rows have no {str(column.name)!r}, and a row without a group belongs "
            "to no task: fill them in, or remove these rows"
        )
    found = tuple(str(value) for value in column.tolist())
    if len(set(found)) < 2:
        raise ValueError(f"{what}: all rows have the {str(column.name)!r} {found[0]!r}: expected two groups or more")
    return found


def by_class_and_group(y: torch.Tensor, groups: Sequence[str]) -> torch.Tensor:
    """A number for every class within every group, so that a stratified split has rows of each group on both sides."""
    names = {name: number for number, name in enumerate(dict.fromkeys(groups))}
    return y * len(names) + torch.tensor([names[group] for group in groups])


def groups_of_parts(groups: Sequence[str], parts: Mapping[str, torch.Tensor]) -> dict[str, tuple[str, ...]]:
    """The groups of the rows of each part."""
    return {part: tuple(groups[row] for row in positions.tolist()) for part, positions in parts.items()}


def _rows_per_class(counts: npt.NDArray[np.intp], total: int) -> npt.NDArray[np.intp]:
    """How many rows of each class go into the part: proportional, at least one in and one out, `total` overall."""
    divisible = counts >= 2
    fewest, most = int(divisible.sum()), int((counts - 1).sum())
    if fewest == 0 or not fewest <= total <= most:
        raise ValueError(
            f"cannot split {counts.sum()} rows of {len(counts)} classes: the part would have {total} rows, but with "
            f"each class of 2 or more rows on both sides it can have {fewest} to {most}; "
            "add rows, choose another fraction, or provide the parts yourself"
        )
    most_of_class = counts - 1
    fewest_of_class = divisible.astype(np.intp)
    ideal = np.where(divisible, counts * (total / counts[divisible].sum()), 0.0)
    quota = np.clip(np.floor(ideal).astype(np.intp), fewest_of_class, most_of_class)
    while missing := total - int(quota.sum()):
        step = 1 if missing > 0 else -1
        slack = most_of_class - quota if step > 0 else quota - fewest_of_class
        furthest_first = np.argsort(-step * (ideal - quota), kind="stable")
        quota[furthest_first[slack[furthest_first] > 0][: abs(missing)]] += step
    return quota
