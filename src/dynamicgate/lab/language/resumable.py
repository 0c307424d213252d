"""A training loop that can be stopped and continued: what the runs on texts and on pretrained models share."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from dynamicgate.training.interrupt import Interrupts

CURVE = 50  # points of the loss curve
Show = Callable[[int, float], None]


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
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.seconds += time.monotonic() - started

    def _note(self, show: Show | None = None) -> None:
        loss = float(torch.stack(self._recent).mean())
        self._recent.clear()
        if not math.isfinite(loss):
            raise ValueError(f"the loss became {loss} at step {self.step}: lower the learning rate")
        relative = self.relative
        self.curve.append([self.step, loss, *([] if relative is None else [relative])])
        if show is not None:
            show(self.step, loss)


def autocast(device: torch.device) -> torch.autocast:
    """bfloat16 on a GPU."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
