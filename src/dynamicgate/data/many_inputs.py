"""`ManyInputs`: samples of several tensors in memory, for models with several arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor

Inputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]


class Samples(Protocol):
    """Inputs with targets in memory, from which batches can be taken in any order; `Arrays` are samples."""

    @property
    def y(self) -> Tensor:
        """The target of each sample."""

    def __len__(self) -> int: ...

    def rows(self, index: Tensor, *, training: bool = False) -> Inputs:
        """The inputs of the samples at these positions."""

    def batches(self, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """All samples in order with their targets, `size` at a time."""

    def to(self, device: torch.device) -> Samples:
        """The same samples with tensors on `device`."""

    def take(self, index: Tensor) -> Samples:
        """The samples at these positions."""


@dataclass(frozen=True, eq=False)
class ManyInputs:
    """A mapping of keyword arguments or a tuple of positional ones, and targets. Tensors with one entry per sample are
    divided into batches, everything else is passed on as it is."""

    x: Mapping[str, Any] | tuple[Any, ...]
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def rows(self, index: Tensor, *, training: bool = False) -> Inputs:
        """The inputs of the samples at these positions."""
        return mapped(self.x, lambda t: t[index.to(t.device)] if t.ndim and len(t) == len(self) else t)

    def batches(self, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """All samples in order with their targets, `size` at a time."""
        for index in torch.arange(len(self)).split(size):
            yield self.rows(index), self.y[index.to(self.y.device)]

    def to(self, device: torch.device) -> ManyInputs:
        """The same samples on `device`."""
        return ManyInputs(mapped(self.x, lambda t: t.to(device)), self.y.to(device))  # type: ignore[arg-type]

    def take(self, index: Tensor) -> ManyInputs:
        """A copy of the samples at these positions."""
        return ManyInputs(self.rows(index), self.y[index])  # type: ignore[arg-type]


def mapped(inputs: Inputs, change: Any) -> Inputs:
    """The same inputs with every tensor changed."""

    def one(value: Any) -> Any:
        return change(value) if isinstance(value, Tensor) else value

    if isinstance(inputs, Mapping):
        return {name: one(value) for name, value in inputs.items()}
    return tuple(map(one, inputs)) if isinstance(inputs, tuple) else one(inputs)
