"""How good answers are, summed over batches: classes, measurements, several labels, and metrics of one's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.metrics import confusion_counts, quality_of
from dynamicgate.data.schema import Schema
from dynamicgate.data.tasks import IGNORED, MSE, Classification, Metric, MultiLabel, Task


class Quality:
    """Sums over batches of outputs and targets.

    classification: accuracy and macro-F1, of a sequence over its tokens. regression: `rmse`, `mae` and `r2`, of several
    measurements the mean over them. multilabel: `exact`, the fraction of rows of which every label is right, and
    `micro_f1`, `macro_f1`. Metrics of one's own are functions of all outputs and all targets.
    """

    def __init__(self, task: Task, metrics: Mapping[str, Metric] | None = None) -> None:
        """Nothing seen yet."""
        self.task, self.metrics = task, dict(metrics or {})
        self._sums: dict[str, Tensor] = {}
        self._rows = 0
        self._outputs: list[Tensor] = []
        self._targets: list[Tensor] = []

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        """Take in one batch."""
        targets = targets.to(outputs.device)
        self._rows += len(targets)
        if self.metrics:
            self._outputs.append(outputs.detach().float().cpu())
            self._targets.append(targets.cpu())
        kind = self.task.name
        if kind == "classification":
            scores, labels = outputs.flatten(0, -2), targets.flatten()
            if targets.ndim > 1:
                scores, labels = scores[labels != IGNORED], labels[labels != IGNORED]
            self._sum(confusion=confusion_counts(scores, labels))
        elif kind == "regression":
            y_BK = targets.reshape(len(targets), -1).double().cpu()
            error_BK = self.task.predict(outputs).detach().reshape(y_BK.shape).double().cpu() - y_BK
            if not self._sums:
                self._shift_K = y_BK.mean(0)  # of the first batch: sums of squares far from zero would lose digits
            y_BK = y_BK - self._shift_K
            self._sum(square=error_BK.square().sum(0), absolute=error_BK.abs().sum(0))
            self._sum(y=y_BK.sum(0), y_square=y_BK.square().sum(0))
        elif kind == "multilabel":
            found_BL, y_BL = self.task.predict(outputs).bool(), targets.bool()
            self._sum(exact=(found_BL == y_BL).all(1).sum(), hits=(found_BL & y_BL).sum(0))
            self._sum(both=found_BL.sum(0) + y_BL.sum(0))

    def _sum(self, **values: Tensor) -> None:
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0) + value.cpu()

    def result(self) -> dict[str, float]:
        """The numbers by name."""
        found: dict[str, float] = {}
        sums, rows = self._sums, self._rows
        if self.task.name == "classification":
            found = quality_of(sums["confusion"])
        elif self.task.name == "regression":
            square_K, spread_K = sums["square"], (sums["y_square"] - sums["y"].square() / rows).clamp(min=0)
            explained_K = torch.where(spread_K > 0, 1.0 - square_K / spread_K.clamp(min=1e-300), math.nan)
            found = {
                "rmse": float((square_K / rows).sqrt().mean()),
                "mae": float((sums["absolute"] / rows).mean()),
                "r2": float(explained_K.mean()),
            }
        elif self.task.name == "multilabel":
            hits_L, both_L = sums["hits"].double(), sums["both"].double()
            f1_L = 2 * hits_L / both_L.clamp(min=1)
            found = {
                "exact": float(sums["exact"]) / rows,
                "micro_f1": float(2 * hits_L.sum() / both_L.sum().clamp(min=1)),
                "macro_f1": float(f1_L[both_L > 0].mean()) if bool((both_L > 0).any()) else 0.0,
            }
        if self.metrics:
            outputs, targets = torch.cat(self._outputs), torch.cat(self._targets)
            for name, metric in self.metrics.items():
                found[name] = _number(metric(outputs, targets), name)
        return found


def check_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """An error now for what could not be called later."""
    if metrics is not None and (not isinstance(metrics, Mapping) or not all(map(callable, metrics.values()))):
        raise TypeError(f"metrics are functions (outputs, targets) to a number by name, received {metrics!r:.60}")
    taken = {"loss", "relative"} & set(metrics or {})
    if taken:
        raise ValueError(f"metrics may not be called {', '.join(sorted(taken))}: these names are taken")
    return dict(metrics or {})


def task_of_schema(schema: Schema | None) -> Task | None:
    """What the targets of a model are that says so; None where class numbers and token models are told by shape."""
    if schema is None or schema.task == "classification":
        return None
    return MSE() if schema.task == "regression" else MultiLabel()


def infer_task(outputs: Tensor, targets: Tensor) -> Task:
    """What targets are, from their type and shape and those of the outputs; what could be two things is refused."""
    whole = not targets.is_floating_point()
    if outputs.ndim == targets.ndim + 1 and outputs.shape[:-1] == targets.shape and outputs.shape[-1] > 1:
        if whole or (targets.ndim == 1 and bool((targets == targets.round()).all())):
            return Classification()
    elif (
        outputs.shape == targets.shape and outputs.ndim > 1 and whole and bool(((targets == 0) | (targets == 1)).all())
    ):
        return MultiLabel()
    elif not whole and len(outputs) == len(targets) and outputs.numel() == targets.numel():
        return MSE()
    raise ValueError(
        f"cannot tell what targets of shape {list(targets.shape)} and type {targets.dtype} are for outputs of shape "
        f"{list(outputs.shape)}: class numbers are whole, one for each row (flatten a column with y.reshape(-1)); "
        "measurements are float, one for each output; labels are 0 or 1, one for each output. Or say what they are "
        "with loss='mse', 'multilabel' and so on"
    )


def check_answers(task: Task, outputs: Tensor, targets: Tensor, what: str) -> Tensor:
    """Targets as `task` reads them; an error for outputs that cannot answer them."""
    task.check_outputs(outputs, targets)
    if task.name == "classification":
        targets = targets.to(torch.int64)
        counted = targets[targets != IGNORED] if targets.ndim > 1 else targets
        if len(counted) and (int(counted.min()) < 0 or int(counted.max()) >= outputs.shape[-1]):
            raise ValueError(
                f"{what}: labels must be 0..{outputs.shape[-1] - 1} for a model with {outputs.shape[-1]} outputs, "
                f"found {int(counted.min())}..{int(counted.max())}"
            )
        return targets
    return targets if task.name == "own" else targets.float()


def _number(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"the metric {name!r} must return one number, received {value!r:.60}") from error
