"""A training loop that can be stopped and continued: what the runs on texts and on pretrained models share."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dynamicgate.training.interrupt import Interrupts

CURVE = 50  # points of the loss curve
Show = Callable[[int, float], None]


class DivergenceError(ValueError):
    """The loss is no number any more: a result of this run, and no reason to end others."""


class ResumableRun(ABC):
    """Counts steps, keeps the curve of the loss, and saves a checkpoint now and then and on Ctrl-C."""

    def __init__(self, steps: int, checkpoint_seconds: float, device: torch.device, folder: Path) -> None:
        """`folder` gets the checkpoint."""
        self.steps, self.checkpoint_seconds, self.device, self.folder = steps, checkpoint_seconds, device, folder
        self.step, self.seconds = 0, 0.0
        self.curve: list[list[float]] = []
        self._recent: list[Tensor] = []

    @property
    def checkpoint(self) -> Path:
        """Where training can be continued from."""
        return self.folder / "last.safetensors"

    @abstractmethod
    def optimize(self) -> Tensor:
        """One step; the loss of the task."""

    @abstractmethod
    def save(self) -> None:
        """A checkpoint from which `resume` goes on to the same result."""

    @abstractmethod
    def resume(self) -> None:
        """Continue where `save` was called."""

    @property
    @abstractmethod
    def relative(self) -> float | None:
        """What a budget saw executed at the last step; None without one."""

    def take_steps(self, show: Show | None = None) -> None:
        """All steps that are left; `show` is told the step and the loss."""
        started = saved = time.monotonic()
        with Interrupts() as interrupts:
            while self.step < self.steps:
                self._recent.append(self.optimize())
                if self.step % max(1, self.steps // CURVE) == 0:
                    self._note(show)
                due = time.monotonic() - saved >= self.checkpoint_seconds
                if due or interrupts.requested:
                    self.seconds, started = self.seconds + time.monotonic() - started, time.monotonic()
                    self.save()
                    saved = time.monotonic()
                if interrupts.requested:
                    raise KeyboardInterrupt
        if self._recent:  # of steps after the last point of the curve
            self._checked_loss()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds += time.monotonic() - started

    def _note(self, show: Show | None = None) -> None:
        loss = self._checked_loss()
        self._recent.clear()
        relative = self.relative
        self.curve.append([self.step, loss, *([] if relative is None else [relative])])
        if show is not None:
            show(self.step, loss)

    def _checked_loss(self) -> float:
        """The mean of the steps since the last point of the curve."""
        loss = float(torch.stack(self._recent).mean())
        if not math.isfinite(loss):
            raise DivergenceError(f"the loss became {loss} at step {self.step}: lower the learning rate")
        return loss


def diverged_run(error: DivergenceError, run: ResumableRun, quality: str) -> dict[str, Any]:
    """What is stored of a run that came to nothing, in place of what it would have reached: no value of its `quality`,
    no MACs, how far it came, and why."""
    return {
        "quality": {quality: None},
        "macs": {"relative": None},
        "seconds": round(run.seconds, 1),
        "curve": [[round(x, 4) for x in point] for point in run.curve],
        "collapses": [],
        "diverged": str(error),
    }


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
