"""`Callback`: what follows a run of `fit`, and may stop it. Loggers and pruning are built on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from dynamicgate.training.log import History


@dataclass(frozen=True, kw_only=True, eq=False)
class RunInfo:
    """What a callback may know about a run before its first step.

    settings: what was asked for, as JSON values. step: where the run begins, more than 0 where it is continued: rows of
        later steps that an earlier call logged come again. steps: where it ends. out: its folder.
    """

    model: nn.Module
    settings: Mapping[str, Any]
    step: int
    steps: int
    steps_per_epoch: int
    out: Path | None


class Callback:
    """Follows a run of `fit`: override what you need, the rest does nothing.

    The methods are called in the first process only. What they raise ends the run. A run that was interrupted or failed
    has no `on_end`, so write out every row as it comes.
    """

    def on_start(self, run: RunInfo) -> None:
        """Before the first step."""

    def on_log(self, row: dict[str, float], step: int) -> bool | None:
        """After some 200 steps of a run, and after every epoch that is validated, whose numbers are `valid/accuracy`,
        `valid/loss` and so on. True ends training here: gates are still calibrated, `history.stopped_early` is True,
        and continuing the run trains no further."""

    def on_end(self, history: History) -> None:
        """After training, calibration and the last validation, which is `history.final`."""


def check_callbacks(callbacks: Sequence[Callback]) -> tuple[Callback, ...]:
    """An error now for what could not be called later."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            raise TypeError(
                "callbacks are instances of dynamicgate.training.Callback or of classes made from it, received "
                f"{callback!r:.60}"
            )
    return tuple(callbacks)


def numbers_of(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """All numbers of a row of the log, under names such as `loss`, `valid/accuracy` and `sites/2/g`; what is None or
    text is left out."""
    found: dict[str, float] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, list):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            found |= numbers_of(value, f"{name}/")
        elif isinstance(value, int | float):
            found[name] = float(value)
    return found
