"""What functions that read data accept: tensors, (x, y), `Arrays`, or batches; and how inputs are taken from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from dynamicgate.data.arrays import Arrays

DataLike: TypeAlias = Tensor | tuple[Tensor, Any] | Arrays | Iterable[Any]
EXPECTED = "expected a tensor of inputs, a tuple (x, y), dynamicgate.data.Arrays, or an iterable of batches"


def inputs_of(data: DataLike, *, rows: int) -> Tensor:
    """The first `rows` rows of the inputs in `data` as one tensor, fewer if there are fewer.

    data: a tensor of inputs; a tuple (x, y), of which x is used; `Arrays`; or an iterable of batches (a DataLoader, a
        list), of which only as many are read as `rows` takes. A batch is a tensor, or a tuple or list that starts with
        one.
    """
    if rows < 1:
        raise ValueError(f"rows must be 1 or more, received {rows}")
    match data:
        case Tensor():
            found = _with_rows(data, "the tensor of inputs")[:rows]
        case Arrays():
            found = data.rows(torch.arange(min(rows, len(data))))
        case (Tensor() as x, _) if isinstance(data, tuple):
            found = _with_rows(x, "x of (x, y)")[:rows]
        case tuple() | str() | bytes() | Mapping() | np.ndarray():
            raise ValueError(f"{EXPECTED}; received {_described(data)}")
        case Iterable():
            found = _first_batches(data, rows)
        case _:
            raise ValueError(f"{EXPECTED}; received {_described(data)}")
    if not len(found):
        raise ValueError(f"{EXPECTED}, with at least one row; received none")
    return found


def _first_batches(batches: Iterable[Any], rows: int) -> Tensor:
    found: list[Tensor] = []
    for number, batch in enumerate(batches):
        x = batch[0] if isinstance(batch, tuple | list) and batch else batch
        if not isinstance(x, Tensor):
            raise ValueError(
                f"expected batches that are tensors or tuples that start with one, received {_described(batch)} as "
                f"batch {number}"
            )
        x = _with_rows(x, f"batch {number}")
        if found and x.shape[1:] != found[0].shape[1:]:
            raise ValueError(
                f"expected batches of rows of one shape, received {tuple(found[0].shape)} and as batch {number} "
                f"{tuple(x.shape)}"
            )
        found.append(x)
        if sum(map(len, found)) >= rows:
            break
    if not found:
        raise ValueError("expected at least one batch, received none: an iterator that was read before is empty")
    return torch.cat(found)[:rows]


def _with_rows(x: Tensor, what: str) -> Tensor:
    if x.ndim == 0:
        raise ValueError(f"{what} must have a first dimension of rows, received a single number")
    return x


def _described(data: object) -> str:
    if isinstance(data, np.ndarray):
        return "a numpy array (convert it with torch.from_numpy)"
    if isinstance(data, tuple | list):
        return f"a {type(data).__name__} of {len(data)}: {', '.join(type(item).__name__ for item in data[:3])}"
    return type(data).__name__
