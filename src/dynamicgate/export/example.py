"""The inputs that a model is traced with, and which of their dimensions may change."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.data.contract import Inputs, count_samples, take_first


def as_example(example: Inputs) -> Inputs:
    """The inputs, with two samples at least: of a single one torch would believe that there is never another."""
    tensors = [value for value in _values(example) if isinstance(value, Tensor)]
    if not tensors or any(value.ndim < 1 or not len(value) for value in tensors):
        raise ValueError(
            "example must be a tensor of one sample or more, or a tuple or mapping of such tensors, received "
            f"{type(example).__name__}"
        )
    if count_samples(example) > 1:
        return example

    def twice(value: Any) -> Any:
        return torch.cat((value, value)) if isinstance(value, Tensor) else value

    if isinstance(example, Mapping):
        return {name: twice(value) for name, value in example.items()}
    return tuple(map(twice, example)) if isinstance(example, tuple) else twice(example)


def batch_dimensions(example: Inputs) -> Any:
    """For `torch.export`: the first dimension of every tensor may change."""

    def of_value(value: Any) -> Any:
        return {0: torch.export.Dim.DYNAMIC} if isinstance(value, Tensor) else None

    if isinstance(example, Mapping):
        return {name: of_value(value) for name, value in example.items()}
    return tuple(of_value(value) for value in _values(example))


def keywords_of(model: nn.Module, example: Inputs) -> list[str] | None:
    """The names under which the model takes these inputs; None where it does not name them."""
    if isinstance(example, Mapping):
        return [name for name, value in example.items() if isinstance(value, Tensor)]
    parameters = list(inspect.signature(model.forward).parameters.values())
    named = [p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    wanted = [isinstance(value, Tensor) for value in _values(example)]
    if len(named) < len(wanted) or not all(wanted):
        return None
    return named[: len(wanted)]


def first_rows(example: Inputs, rows: int) -> Inputs:
    """The first samples."""
    return take_first(example, rows)


def _values(example: Inputs) -> tuple[Any, ...]:
    if isinstance(example, Mapping):
        return tuple(example.values())
    return example if isinstance(example, tuple) else (example,)
