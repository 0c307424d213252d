"""`RunState`: everything that one run of `fit` has, and its log."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget import Budget, GateBudget
from dynamicgate.data.contract import Inputs, move
from dynamicgate.data.tasks import Classification, Metric, Task
from dynamicgate.gating.recording import Usage, is_gated
from dynamicgate.gating.stages import stages_of
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.callbacks import Callback, numbers_of
from dynamicgate.training.dense_units import DenseUnits
from dynamicgate.training.distillation import Teacher
from dynamicgate.training.interrupt import Interrupts
from dynamicgate.training.loader_stream import LoaderStream
from dynamicgate.training.log import History, append_row, site_stats, stage_stats
from dynamicgate.training.optimizer import MakeOptimizer, adamw, own_optimizer
from dynamicgate.training.options import FitOptions
from dynamicgate.training.reading import Source
from dynamicgate.training.stage_loss import StageLoss
from dynamicgate.training.task_loss import TaskLoss

LOG_LINES = 200


class RunState:
    """The state of one run of `fit`."""

    def __init__(
        self,
        *,
        model: nn.Module,
        train: Source,
        options: FitOptions,
        device: torch.device,
        valid: Source | None = None,
        budget: GateBudget | None = None,
        sparsifier: Sparsifier | None = None,
        class_weights: Tensor | None = None,
        task: Task | None = None,
        metrics: Mapping[str, Metric] | None = None,
        optimizer: MakeOptimizer | None = None,
        out: Path | None = None,
        teacher: Teacher | None = None,
        stage_loss: StageLoss | None = None,
        callbacks: Sequence[Callback] = (),
        checkpoint_seconds: float = 15.0,
        dense_macs: float | None = None,
    ) -> None:
        """A run at step 0; `resume` continues an earlier one."""
        self.model, self.budget, self.sparsifier, self.options = model, budget, sparsifier, options
        self.device, self.out, self.teacher = device, out, teacher
        self.data = train if isinstance(train, LoaderStream) else train.to(device)
        self.valid, self.metrics = valid, dict(metrics or {})
        self.class_weights = class_weights.to(device) if class_weights is not None else None
        self.valid_task = task or Classification()
        """What targets are. Classes are weighted and smoothed in training only."""
        self.task = self.valid_task
        if isinstance(self.task, Classification):
            self.task = Classification(self.class_weights, options.label_smoothing)
        self.callbacks = tuple(callbacks) if distributed.rank() == 0 else ()
        self.gated = is_gated(model)
        self.staged = stages_of(model) is not None
        if stage_loss is not None and not self.staged:
            raise ValueError(
                "stage_loss is for a model with stages: call gate_(model, GateConfig(kind='stages')) first"
            )
        values = self.task.name not in ("classification", "own")
        self.stage_loss = stage_loss or StageLoss(outputs="values" if values else "classes")
        self.task_loss = TaskLoss(self.task, teacher)
        self.counter = count_macs(model, self.example())
        self.units = DenseUnits(1.0 if dense_macs is None else self.counter.dense / dense_macs)
        if budget is not None:
            if not self.gated:
                raise ValueError(
                    "a budget steers gates, and this model has none: call dynamicgate.gate_(model, ...) first"
                )
            budget.reset()
            if isinstance(budget, Budget):
                budget.bind(self.counter, sparsifier)
        self.parallel = distributed.parallel(model)
        self.own_optimizer = optimizer is not None
        self.optimizer = (
            adamw(model, options, device) if optimizer is None else own_optimizer(optimizer, model, options)
        )
        if isinstance(self.data, LoaderStream):
            self.steps_per_epoch = self.data.steps
        else:
            self.steps_per_epoch = math.ceil(len(self.data) / options.batch)
        self.total = self.steps_per_epoch * options.epochs
        self.log_every = max(1, self.total // LOG_LINES)
        if sparsifier is not None:
            sparsifier.check_length(self.total)
        self.step = 0
        self.history = History()
        self.epochs_since_best = 0
        self.best_weights: dict[str, Tensor] | None = None
        self.last_loss = math.nan
        self.stop_asked = False
        """By a callback; only the first process knows before all have agreed."""
        self.checkpoint_seconds = checkpoint_seconds
        self.interrupts = Interrupts()
        self.settings: dict[str, Any] | None = None
        """What identifies it, once that was asked for."""
        self.saved_at = self.started = time.monotonic()

    def example(self) -> Inputs:
        """Two rows, or one."""
        if isinstance(self.data, LoaderStream):
            return move(self.data.example, self.device)
        return self.rows(torch.arange(min(2, len(self.data))))

    def rows(self, index: Tensor, *, training: bool = False) -> Inputs:
        """The rows in memory at these positions, on the device of the run."""
        assert not isinstance(self.data, LoaderStream)
        on_device = isinstance(getattr(self.data, "x", None), Tensor)
        return move(self.data.rows(index.to(self.device) if on_device else index, training=training), self.device)

    def log(self, row: dict[str, Any], used: Usage | None) -> None:
        """Add a row to the history and the file, and show it to the callbacks."""
        found: dict[str, Any] = {
            "step": self.step,
            "epoch": (self.step - 1) // self.steps_per_epoch,
            "progress": self.step / self.total,
            "loss": None,
            "penalty": None,
            "lr": self.optimizer.param_groups[0]["lr"],
            **self.units.of_budget(self.budget),
            "lambda": self.budget.lambda_ if self.budget else None,
            "valid": None,
            "sites": site_stats(self.model, used) if used is not None else {},
            "stages": stage_stats(used),
            "sparsity": self.sparsifier.stats() if self.sparsifier else None,
            "masks": self.sparsifier.fingerprint() if self.sparsifier else None,
            **row,
        }
        self.history.log.append(found)
        if self.out is not None and distributed.rank() == 0:
            append_row(self.out / "log.jsonl", found)
        numbers = numbers_of({key: value for key, value in found.items() if key != "step"}) if self.callbacks else {}
        answers = [callback.on_log(dict(numbers), self.step) for callback in self.callbacks]  # all hear of the row
        self.stop_asked = self.stop_asked or any(answers)
