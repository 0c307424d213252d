"""`predict`: what a model answers for each row, and what that costs."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.measurement import measure
from dynamicgate.data.by_name import batches_by_name
from dynamicgate.data.schema import schema_of
from dynamicgate.modules import unwrap


@dataclass(frozen=True, eq=False)
class Predictions:
    """The answers of a model, one row each.

    scores: probabilities of the classes (or of each label, for multilabel), or the values of a regression.
    cost: executed MACs as a fraction of the dense network: the one that was asked for where the model knows it, else
        its own without gates and masks.
    """

    scores: Tensor
    cost: Tensor
    task: str
    classes: tuple[str, ...]
    """Names of the outputs, "0", "1", … where they have none."""
    notes: tuple[str, ...] = ()
    """What was done to data whose columns were found by name."""

    @property
    def labels(self) -> list[str]:
        """The most probable class of each row."""
        if self.task != "classification":
            raise ValueError(f"a model of {self.task} has no most probable class: read its scores")
        return [self.classes[k] for k in self.scores.argmax(1).tolist()]


def predict(model: nn.Module, data: Any, *, batch: int = 1024, allow: Collection[str] = ()) -> Predictions:
    """Run `model` in evaluation mode over `data` (see `dynamicgate.data.contract`; targets are not read).

    Task and names of classes are those of the model's schema; without one it is taken as a classifier. Columns and
    genes are found by name, and `allow` names exceptions, as in `measure`.
    """
    schema = schema_of(unwrap(model))
    task = "classification" if schema is None else schema.task
    outputs: list[Tensor] = []
    macs: list[Tensor] = []

    def record(out: Tensor, macs_B: Tensor) -> None:
        outputs.append(out.detach().double().cpu())
        macs.append(macs_B)

    batches, notes = batches_by_name(data, schema, batch, allow=allow, targets=False)
    found = measure(model, (inputs for inputs, _ in batches), watch=record)
    out_NC = torch.cat(outputs)
    if out_NC.ndim != 2:
        raise ValueError(f"expected a model that answers one row for each row, received shape {tuple(out_NC.shape)}")
    names = () if schema is None else schema.classes
    if names and len(names) != out_NC.shape[1]:
        raise ValueError(f"the model answers {out_NC.shape[1]} values, and its schema names {len(names)} classes")
    dense = found.macs["dense"] if schema is None or not schema.dense_macs else schema.dense_macs
    scores_NC = out_NC.softmax(1) if task == "classification" else out_NC.sigmoid() if task == "multilabel" else out_NC
    classes = names or tuple(map(str, range(out_NC.shape[1])))
    return Predictions(scores_NC, torch.cat(macs) / dense, task, classes, tuple(notes))
