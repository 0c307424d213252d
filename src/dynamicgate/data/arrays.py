"""What a dataset is once it is in memory: rows with labels, and three named parts of them.

The values stay raw (at most scaled by a constant), so that a zero in the file is a zero in the tensor: executed work is
counted on exact zeros. Normalisation constants travel beside the data, and the model applies them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch


class Rows(Protocol):
    """What rows may be stored in besides a tensor: a memory-mapped file, a sparse matrix. Read by whole batches."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[n, features...]"""

    def __len__(self) -> int: ...

    def __getitem__(self, index: torch.Tensor) -> torch.Tensor:
        """The rows at these positions as a tensor of their own."""


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

    `check_arrays` builds them safely. Where rows are stored in another form, `prepare` turns a batch as stored into the
    float32 features a model reads. `augment` varies a stored batch in training; its randomness is torch's.
    """

    x: torch.Tensor | Rows
    y: torch.Tensor
    prepare: Callable[[torch.Tensor], torch.Tensor] | None = None
    augment: Callable[[torch.Tensor], torch.Tensor] | None = None

    def __len__(self) -> int:
        return len(self.y)

    @property
    def features(self) -> int:
        """Number of features that a model reads of one row."""
        if self.prepare is None:
            return math.prod(self.x.shape[1:])
        return self.rows(torch.arange(1))[0].numel()

    def rows(self, index: torch.Tensor, *, training: bool = False) -> torch.Tensor:
        """The batch at these positions, ready for a model."""
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
        """With every row as one vector."""
        if isinstance(self.x, torch.Tensor) and self.prepare is None:
            return replace(self, x=self.x.flatten(1))
        prepare = self.prepare or torch.nn.Identity()
        return replace(self, prepare=lambda batch: prepare(batch).flatten(1))

    def to(self, device: torch.device) -> Arrays:
        """With tensors on `device`; other stores stay where they are, their batches are moved one by one."""
        x = self.x.to(device) if isinstance(self.x, torch.Tensor) else self.x
        return replace(self, x=x, y=self.y.to(device))

    def take(self, index: torch.Tensor) -> Arrays:
        """The rows at `index` (positions, or a boolean per row): a copy of a tensor, a view of any other store."""
        positions = index.nonzero().squeeze(1) if index.dtype == torch.bool else index
        x = self.x[positions] if isinstance(self.x, torch.Tensor) else View(self.x, positions)
        return replace(self, x=x, y=self.y[positions])
