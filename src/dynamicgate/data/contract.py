"""The data that `fit`, `measure`, `compile` and `calibrate_` accept, and how a model is called on it.

Data is one of: a tensor of rows, a numpy array, a DataFrame, a scipy sparse matrix or AnnData; a pair
`(inputs, targets)` of such inputs and their targets, where a text as targets names a column of the DataFrame or of the
`obs` of AnnData; `Arrays`; a mapping of tensors, which are passed to the model as keyword arguments; a DataLoader or
another iterable of such batches. A tuple of two tensors is always a pair, so put batches into a list. The inputs of a
batch are a tensor, a tuple of positional arguments or a mapping of keyword arguments, each with one entry per sample in
its first dimension. Rows of a sparse matrix become dense batch by batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dynamicgate.data.arrays import Arrays, Rows
from dynamicgate.data.checks import check_features
from dynamicgate.data.many_inputs import Inputs as Inputs
from dynamicgate.data.many_inputs import ManyInputs, Samples, mapped
from dynamicgate.data.tables import is_table, table_rows, take_column
from dynamicgate.data.targets import as_targets, check_targets
from dynamicgate.data.tasks import TaskName

EXPECTED = (
    "a tensor of rows, a table (numpy, pandas, scipy.sparse, AnnData), a pair (inputs, targets), "
    "dynamicgate.data.Arrays, a mapping of tensors, or a DataLoader or another iterable of such batches"
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
    return mapped(inputs, lambda t: t[index] if t.ndim and len(t) == count else t)


def take_first(inputs: Inputs, count: int) -> Inputs:
    """The first samples of a batch; the whole batch where images or sounds come with texts: they need not belong to
    texts one by one, one may have two and the next none."""
    with_text = isinstance(inputs, Mapping) and "input_ids" in inputs and any(map(_is_medium, inputs, inputs.values()))
    return inputs if with_text else take_samples(inputs, slice(count))


def move(inputs: Inputs, device: torch.device) -> Inputs:
    """The same inputs on `device`."""
    return mapped(inputs, lambda t: t.to(device))


def iterate(data: Any, size: int) -> Iterator[tuple[Inputs, Tensor | None]]:
    """Batches of at most `size` samples with their targets, None where there are none; see the top of this file."""
    if isinstance(data, Arrays | ManyInputs):
        yield from data.batches(size)
        return
    if is_table(data) or is_table_pair(data):
        table, y = data if isinstance(data, tuple | list) else (data, None)
        rows, targets = _read_table(table, y, "data")
        for index in torch.arange(len(rows)).split(size):
            yield rows[index], None if targets is None else targets[index]
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


def halves(data: Any, what: str) -> tuple[Any, Any]:
    """Inputs and targets, both in memory and unchecked: `Arrays` are their own inputs. An iterable of batches is read
    once, from its first to its last batch."""
    if isinstance(data, Arrays | ManyInputs):
        return data, data.y
    if isinstance(data, tuple | list) and len(data) == 2 and (_is_pair(data) or is_table_pair(data)):
        x, y = data
        if y is not None:
            return take_column(x, y, what) if isinstance(y, str) else (x, y)
    elif hasattr(data, "x") and hasattr(data, "y") and not is_table(data):
        return data.x, data.y
    if is_table(data) or isinstance(data, Tensor | Mapping | str | bytes | tuple) or not isinstance(data, Iterable):
        raise TypeError(
            f"{what} must be a pair (x, y) of tensors or tables with one row per sample, dynamicgate.data.Arrays, or "
            f"an iterable of such pairs, received {_described(data)}; a column of a table is named, as in (table, 'y')"
        )
    parts = [_as_batch(batch) for batch in data]
    if not parts or not all(isinstance(x, Tensor) and isinstance(y, Tensor) for x, y in parts):
        raise TypeError(f"{what}: every batch must be a pair (x, y) of tensors, and there must be at least one")
    x, y = (torch.cat(column) for column in zip(*parts, strict=True))
    return x, y


def check_inputs(x: Any, what: str, *, whole: bool = False) -> Any:
    """The inputs of `halves` as they are stored; with `whole` as whole numbers, for models that read tokens."""
    if isinstance(x, Arrays | ManyInputs):
        return x
    if isinstance(x, Mapping | tuple):
        return mapped(x, lambda t: t.float() if t.is_floating_point() else t)
    return table_rows(x, what) if is_table(x) and not whole else check_features(x, what, whole=whole)


def with_targets(x: Any, y: Any, what: str, *, task: TaskName, least_classes: int, tokens: bool = False) -> Samples:
    """Checked inputs with checked targets, for training in any order. tokens: a row may have a class for each token."""
    rows = count_samples(x) if isinstance(x, Mapping | tuple) else len(x)
    found = as_targets(y, what)
    found = check_targets(found, task, what, rows=rows, least_classes=least_classes, tokens=tokens)
    if isinstance(x, Arrays | ManyInputs):
        return replace(x, y=found)
    return ManyInputs(x, found) if isinstance(x, Mapping | tuple) else Arrays(x, found)


def as_arrays(data: Any, what: str, *, least_classes: int) -> Arrays:
    """Rows and class labels in memory, checked, for training in any order."""
    if isinstance(data, Arrays):
        return data
    x, y = halves(data, what)
    found = with_targets(check_inputs(x, what), y, what, task="classification", least_classes=least_classes)
    if not isinstance(found, Arrays):
        raise TypeError(f"{what} must have one tensor of rows, received several inputs for each sample")
    return found


def _read_table(table: Any, y: Any, what: str) -> tuple[Tensor | Rows, Tensor | None]:
    table, y = take_column(table, y, what) if isinstance(y, str) else (table, y)
    rows = table if isinstance(table, Tensor) else table_rows(table, what)
    if y is None:
        return rows, None
    found = torch.as_tensor(as_targets(y, what))
    if len(found) != len(rows):
        raise ValueError(f"{what}: x has {len(rows)} rows but y has {len(found)}; give exactly one for each row")
    return rows, found


def is_table_pair(data: Any) -> bool:
    """A table and its targets, which are values or the name of a column; or a tensor and a table of targets."""
    if not isinstance(data, tuple | list) or len(data) != 2:
        return False
    x, y = data
    if isinstance(data, list) and getattr(y, "ndim", 1) != 1:  # a list of batches
        return False
    values = isinstance(y, np.ndarray) or hasattr(y, "to_numpy")
    return (is_table(x) and (values or y is None or isinstance(y, Tensor | str))) or (isinstance(x, Tensor) and values)


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


def _described(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}: {', '.join(type(item).__name__ for item in value[:3])}"
    return type(value).__name__
