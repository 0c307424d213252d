"""Read the data of `fit` for a model: rows in memory or a DataLoader, whole numbers or float, targets of a task."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from dynamicgate.accounting.quality import check_answers
from dynamicgate.data.contract import Inputs, call, check_inputs, count_samples, halves, move, take_first, with_targets
from dynamicgate.data.many_inputs import Samples
from dynamicgate.data.schema import schema_of
from dynamicgate.data.tasks import IGNORED, Task
from dynamicgate.display import first_few
from dynamicgate.modules import evaluating
from dynamicgate.training.loader_stream import LoaderStream

EXAMPLE = 2  # rows
SHOWN = 8  # empty classes in a warning
Source: TypeAlias = Samples | LoaderStream


class Data(NamedTuple):
    """What `fit` trains on, and a few inputs with the outputs that the model has for them."""

    train: Source
    valid: Source | None
    example: Inputs
    outputs: Tensor


def read_data(model: nn.Module, train: Any, valid: Any, task: Task, device: torch.device) -> Data:
    """Data that this model can read, with targets that it can answer; a readable error for others."""
    found, example, outputs = _read(model, train, task, device, "training data", least_classes=2)
    held = None if valid is None else _read(model, valid, task, device, "validation data", least_classes=1)[0]
    if task.name == "classification" and not isinstance(found, LoaderStream):
        _say_empty_classes(found.y, outputs.shape[-1])
    return Data(found, held, example, outputs)


def read_in_memory(model: nn.Module, train: Any, valid: Any, task: Task) -> tuple[Samples, Samples | None]:
    """The same, in memory, for trainings that divide the rows anew."""
    device = next(model.parameters()).device
    parts = []
    for data, what, least in ((train, "training data", 2), (valid, "validation data", 1)):
        in_memory = iter(data) if isinstance(data, DataLoader) else data
        found = None if data is None else _read(model, in_memory, task, device, what, least_classes=least)[0]
        assert not isinstance(found, LoaderStream)
        parts.append(found)
    assert parts[0] is not None
    return parts[0], parts[1]


def _read(
    model: nn.Module, data: Any, task: Task, device: torch.device, what: str, *, least_classes: int
) -> tuple[Source, Inputs, Tensor]:
    if isinstance(data, DataLoader):
        stream = LoaderStream(data, what)
        example = move(stream.example, device)
        outputs = outputs_of(model, example)
        check_answers(task, outputs, stream.example_targets.to(device), what)
        return stream, example, outputs
    x, y = halves(data, what)
    _refuse_other_columns(model, x, what)
    inputs = check_inputs(x, what, whole=_reads_whole_numbers(model, x, device))
    example = move(_first_rows(inputs), device)
    outputs = outputs_of(model, example)
    samples = with_targets(inputs, y, what, task=task.name, least_classes=least_classes, tokens=outputs.ndim > 2)
    task.check_outputs(outputs, samples.y[: len(outputs)])
    if task.name == "classification":
        _check_labels(samples.y, outputs.shape[-1], what)
    return samples, example, outputs


def _first_rows(inputs: Any) -> Inputs:
    if hasattr(inputs, "rows"):  # Arrays and others that divide themselves
        return inputs.rows(torch.arange(min(EXAMPLE, len(inputs))))
    if isinstance(inputs, dict | tuple):
        return take_first(inputs, EXAMPLE)
    return inputs[torch.arange(min(EXAMPLE, len(inputs)))]


@torch.no_grad()
def outputs_of(model: nn.Module, example: Inputs) -> Tensor:
    """The outputs for a few rows; a readable error if the model does not accept them."""
    shape = list(example.shape[1:]) if isinstance(example, Tensor) else f"of {len(example)} inputs"
    try:
        with evaluating(model):
            outputs = call(model, example)
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(f"the model cannot read rows of shape {shape}: {error}") from error
    if not isinstance(outputs, Tensor) or not outputs.ndim or len(outputs) != count_samples(example):
        found = list(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        raise ValueError(
            f"expected a model that returns one tensor with an entry for each of {count_samples(example)} rows, this "
            f"one returned {found}; for Hugging Face models use their Trainer with dynamicgate.hf.GateCallback"
        )
    return outputs


def _reads_whole_numbers(model: nn.Module, x: Any, device: torch.device) -> bool:
    """Whether rows of whole numbers are tokens to this model: it cannot read them as float, but as they are."""
    kind = x.dtype.kind if isinstance(x, np.ndarray) else "" if not isinstance(x, Tensor) else _kind(x)
    if kind not in ("i", "u") or not len(x):
        return False
    rows = torch.as_tensor(x[:EXAMPLE]).to(device)
    try:
        outputs_of(model, rows.float())
    except ValueError:
        try:
            outputs_of(model, rows.long())
        except ValueError as error:  # the message for whole numbers, unless those are not the problem
            return "index out of range" in str(error)
        return True
    return False


def _kind(x: Tensor) -> str:
    return "" if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool else "i"


def _check_labels(y: Tensor, classes: int, what: str) -> None:
    """The model must have an output for every label."""
    counted = y[y != IGNORED] if y.ndim > 1 else y
    least, most = int(counted.min()), int(counted.max())
    if least < 0 or most >= classes:
        raise ValueError(
            f"{what}: labels must be 0..{classes - 1} for a model with {classes} outputs, found {least}..{most}"
        )


def _say_empty_classes(y: Tensor, classes: int) -> None:
    counted = y[y != IGNORED] if y.ndim > 1 else y
    empty = (torch.bincount(counted.flatten(), minlength=classes) == 0).nonzero().flatten().tolist()
    if empty and y.ndim == 1:
        shown = first_few(empty, SHOWN)
        warnings.warn(
            f"the model has {classes} outputs, and no training row has class {shown}: classes are numbered from 0; "
            "renumber labels that leave some out with `numpy.unique(y, return_inverse=True)[1]`",
            stacklevel=4,
        )


def _refuse_other_columns(model: nn.Module, x: Any, what: str) -> None:
    """Training reads columns by position: a DataFrame in another order than the model was trained on is no mistake that
    anyone would notice."""
    schema, columns = schema_of(model), getattr(x, "columns", None)
    if schema is None or not schema.columns or columns is None:
        return
    names = [column.name for column in schema.columns]
    if sorted(map(str, columns)) == sorted(names) and list(map(str, columns)) != names:
        raise ValueError(
            f"the columns of the {what} stand in another order than the model knows them: pass frame[{names!r}]"
        )
