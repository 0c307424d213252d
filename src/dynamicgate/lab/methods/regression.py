"""Regression: networks learn targets of mean 0 and deviation 1, and their last layer then answers in units."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from dynamicgate.data.tasks import Task, as_task
from dynamicgate.lab.datasets.splits import PARTS, Splits
from dynamicgate.lab.methods.hyperparameters import Settings


class TargetScale(NamedTuple):
    """Mean and standard deviation of the targets in the training rows."""

    mean: float = 0.0
    std: float = 1.0


def task_of(settings: Settings, splits: Splits) -> Task | None:
    """What is minimised; None is classification."""
    if not splits.is_regression:
        return None
    return as_task("mse" if settings.loss == "auto" else settings.loss)


def scaled(splits: Splits) -> tuple[Splits, TargetScale]:
    """The data as a network learns them, and the scale of the targets; classes stay as they are."""
    if not splits.is_regression:
        return splits, TargetScale()
    y = splits.train.y.double()
    scale = TargetScale(float(y.mean()), float(y.std(correction=0)) or 1.0)
    parts = {part: getattr(splits, part) for part in PARTS}
    return replace(
        splits,
        **{part: replace(rows, y=((rows.y.double() - scale.mean) / scale.std).float()) for part, rows in parts.items()},
    ), scale


@torch.no_grad()
def answer_in_units_(model: nn.Module, scale: TargetScale) -> None:
    """Put the scale into the last layer, in place."""
    if scale == TargetScale():
        return
    last = model.layers[-1]  # type: ignore[index]
    assert isinstance(last, nn.Linear)
    last.weight.mul_(scale.std)
    last.bias.mul_(scale.std).add_(scale.mean)
