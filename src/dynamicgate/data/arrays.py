"""`Arrays`: rows and labels in memory.

Values stay raw, or scaled by a constant, so that a zero in the file is a zero in the tensor: zero-skipping MACs are
counted on exact zeros. Normalization is a part of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch


class Rows(Protocol):
    """A store of rows other than a tensor, such as a memory-mapped file or a sparse matrix. Read in whole batches."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, features...]"""

    def __len__(self) -> int: ...

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        """A copy of the rows at these positions, as a tensor."""


class View:
    """Some rows of a store, without copying it."""

    def __init__(self, store: Rows, positions: torch.Tensor) -> None:
        """The rows of `store` at `positions`, in that order."""
        self.store, self.positions = store, positions
        self.shape = (len(positions), *store.shape[1:])

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        return self.store[self.positions[index]]


@dataclass(frozen=True, eq=False)
class Arrays:
    """Rows `x` ([n, features...], a float32 tensor unless stored otherwise) and class numbers `y` (int64, [n]).

    `check_arrays` makes them from tensors or numpy arrays. Where rows are stored in another form, `prepare` turns a
    stored batch into the float32 features a model reads. `augment` transforms a stored batch in training; its
    randomness is torch's.
    """

    x: torch.Tensor | Rows
    y: torch.Tensor
    prepare: Callable[[torch.Tensor], torch.Tensor] | None = None
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def features(self) -> int:
        """The number of features of one row, as a model reads it."""
        if self.prepare is None:
            return math.prod(self.x.shape[1:])
        return self.rows(torch.arange(1))[0].numel()

    def rows(self, index: torch.Tensor, *, training: bool = False) -> torch.Tensor:
        """The rows at these positions, ready for a model."""
        batch = self.x[index]
        if training and self.augment is not None:
            batch = self.augment(batch)
        return batch if self.prepare is None else self.prepare(batch)

    @property
    def values(self) -> torch.Tensor:
        """All rows as one tensor; no copy where they are stored as one."""
        if isinstance(self.x, torch.Tensor) and self.prepare is None:
            return self.x
        return self.rows(torch.arange(len(self)))

    def batches(self, size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All rows in order with their labels, `size` at a time."""
        for index in torch.arange(len(self)).split(size):
            yield self.rows(index), self.y[index]

    def flat(self) -> Arrays:
        """The same data with every row flattened to a vector."""
        if isinstance(self.x, torch.Tensor) and self.prepare is None:
            return replace(self, x=self.x.flatten(1))
        prepare = self.prepare or torch.nn.Identity()
        return replace(self, prepare=lambda batch: prepare(batch).flatten(1))

    def to(self, device: torch.device) -> Arrays:
        """The same data with tensors on `device`. Other stores stay where they are; their batches must be moved."""
        x = self.x.to(device) if isinstance(self.x, torch.Tensor) else self.x
        return replace(self, x=x, y=self.y.to(device))

    def take(self, index: torch.Tensor) -> Arrays:
        """The rows at `index` (positions, or a boolean per row): a copy of a tensor, a view of any other store."""
        positions = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
        x = self.x[positions] if isinstance(self.x, torch.Tensor) else View(self.x, positions)
        return replace(self, x=x, y=self.y[positions])
