"""The data that `fit`, `measure`, `compile` and `calibrate_` accept, and how a model is called on it.

Data is one of: a tensor of rows; a pair `(inputs, targets)`; `Arrays`; a mapping of tensors, which are passed to the
model as keyword arguments; a DataLoader or another iterable of such batches. A tuple of two tensors is always a pair,
so put batches into a list. The inputs of a batch are a tensor, a tuple of positional arguments or a mapping of keyword
arguments, each with one entry per sample in its first dimension.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from dynamicgate.data.arrays import Arrays
from dynamicgate.data.checks import check_arrays

Inputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]
EXPECTED = (
    "a tensor of rows, a pair (inputs, targets), dynamicgate.data.Arrays, a mapping of tensors, or a DataLoader or "
    "another iterable of such batches"
)


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Run a model on the inputs of one batch."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def count_samples(inputs: Inputs) -> int:
    """How many samples a batch holds: the first dimension of its first tensor."""
    return len(_first_tensor(inputs))


def take_samples(inputs: Inputs, index: slice) -> Inputs:
    """Some samples of a batch. Values without one entry per sample stay as they are."""
    count = count_samples(inputs)
    return _mapped(inputs, lambda t: t[index] if t.ndim and len(t) == count else t)


def take_first(inputs: Inputs, count: int) -> Inputs:
    """The first samples of a batch; the whole batch where images or sounds come with texts: they need not belong to
    texts one by one, one may have two and the next none."""
    with_text = isinstance(inputs, Mapping) and "input_ids" in inputs and any(map(_is_medium, inputs, inputs.values()))
    return inputs if with_text else take_samples(inputs, slice(count))


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on `device`."""
    return _mapped(inputs, lambda t: t.to(device))


def iterate(data: Any, size: int) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Batches of at most `size` samples with their targets, None where there are none; see the top of this file."""
    if isinstance(data, Arrays):
        yield from data.batches(size)
        return
    if hasattr(data, "x") and hasattr(data, "y"):
        data = (data.x, data.y)
    if isinstance(data, Tensor | Mapping):
        data = (data, None)
    if _is_pair(data):
        inputs, targets = data
        for start in range(0, count_samples(inputs), size):
            part = slice(start, start + size)
            yield take_samples(inputs, part), None if targets is None else targets[part]
    elif isinstance(data, np.ndarray):
        raise TypeError(f"expected data as {EXPECTED}, received a numpy array: convert it with torch.from_numpy")
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        for batch in data:
            yield _as_batch(batch)
    else:
        raise TypeError(f"expected data as {EXPECTED}, received {type(data).__name__}")


def inputs_of(data: Any, *, rows: int) -> Tensor:
    """The inputs of the first `rows` samples as one tensor, fewer if there are fewer; only as many batches are read."""
    if rows < 1:
        raise ValueError(f"rows must be 1 or more, received {rows}")
    found: list[Tensor] = []
    for inputs, _ in iterate(data, rows):
        if not isinstance(inputs, Tensor):
            raise TypeError(f"expected inputs that are one tensor, received {type(inputs).__name__}")
        if found and inputs.shape[1:] != found[0].shape[1:]:
            raise ValueError(
                f"expected rows of one shape, received {tuple(found[0].shape[1:])} and {tuple(inputs.shape[1:])}"
            )
        found.append(inputs)
        if sum(map(len, found)) >= rows:
            break
    if not sum(map(len, found)):
        raise ValueError("expected at least one row, received none; an iterator that was read before is empty")
    return torch.cat(found)[:rows]


def as_arrays(data: Any, what: str, *, least_classes: int) -> Arrays:
    """Rows and class labels in memory, checked, for training in any order. A DataLoader is read once, from its first
    to its last batch."""
    if isinstance(data, Arrays):
        return data
    if isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(d, Tensor | np.ndarray) for d in data):
        return check_arrays(data[0], data[1], what=what, least_classes=least_classes)
    if isinstance(data, Tensor | Mapping | np.ndarray | str | bytes) or not isinstance(data, Iterable):
        raise TypeError(
            f"{what} must be a pair (x, y) of tensors with one row per sample, dynamicgate.data.Arrays, or an iterable "
            f"of such pairs, received {type(data).__name__}"
        )
    parts = [_as_batch(batch) for batch in data]
    if not parts or not all(isinstance(x, Tensor) and isinstance(y, Tensor) for x, y in parts):
        raise TypeError(f"{what}: every batch must be a pair (x, y) of tensors, and there must be at least one")
    x, y = (torch.cat(column) for column in zip(*parts, strict=True))
    return check_arrays(x, y, what=what, least_classes=least_classes)


def _is_medium(name: str, value: Any) -> bool:
    """Whether an input holds images or sounds: numbers that are neither labels nor a mask."""
    return (
        isinstance(value, Tensor) and value.is_floating_point() and name != "labels" and not name.endswith("mask")
    )  # fmt: skip


def _as_batch(batch: Any) -> tuple[Inputs, Tensor | None]:
    if isinstance(batch, Tensor | Mapping):
        return batch, None
    if isinstance(batch, list) and len(batch) == 2:  # as DataLoaders make them
        batch = tuple(batch)
    if _is_pair(batch):
        inputs, targets = batch
        return inputs, targets
    raise TypeError(
        f"a batch is a tensor, a mapping of tensors or a pair (inputs, targets), received {_described(batch)}"
    )


def _is_pair(data: Any) -> bool:
    """A tuple, or a list as DataLoaders make them; a list of two tensors of rows is a list of batches."""
    if not isinstance(data, tuple | list) or len(data) != 2 or not isinstance(data[0], Tensor | Mapping | tuple):
        return False
    targets = data[1]
    if isinstance(data, list):
        return isinstance(targets, Tensor) and targets.ndim == 1
    return targets is None or isinstance(targets, Tensor)


def _first_tensor(inputs: Inputs) -> Tensor:
    values = inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, tuple) else (inputs,)
    for value in values:
        if isinstance(value, Tensor) and value.ndim:
            return value
    raise ValueError(f"expected inputs with a first dimension of samples, received {inputs!r:.80}")


def _mapped(inputs: Inputs, change: Any) -> Inputs:
    def one(value: Any) -> Any:
        return change(value) if isinstance(value, Tensor) else value

    if isinstance(inputs, Mapping):
        return {name: one(value) for name, value in inputs.items()}
    return tuple(map(one, inputs)) if isinstance(inputs, tuple) else one(inputs)


def _described(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(type(item).__name__ for item in value[:3])}"
    return type(value).__name__
