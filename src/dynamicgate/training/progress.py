"""Progress of a run: a rich bar in a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any


class Progress:
    """A progress bar. Use it as a context manager and call `update` with the fraction done and a short text."""

    def __init__(self, label: str, *, show: bool = True, plain_every: float = 10.0) -> None:
        """`plain_every` seconds between lines where the output is not a terminal."""
        self.label = label
        self.show = show
        self.plain_every = plain_every
        self._bar: Any = None
        self._task: Any = None
        self._printed = self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if self.show and sys.stderr.isatty():
            try:
                from rich.console import Console
                from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
                from rich.progress import Progress as RichProgress
            except ImportError:
                return self  # rich is an optional extra; print plain lines
            columns = (
                TextColumn("{task.description}"),
                BarColumn(),
                TimeRemainingColumn(),
                TextColumn("{task.fields[text]}"),
            )
            self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=1.0, text="")
        return self

    def update(self, fraction: float, text: str) -> None:
        """Show that this fraction of the work is done."""
        if not self.show:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=fraction, text=text)
            return
        now = time.monotonic()
        if now - self._printed >= self.plain_every:
            self._printed = now
            left = (now - self._started) * (1.0 - fraction) / max(fraction, 1e-9)
            print(f"{self.label}  {fraction:4.0%}  {left:.0f} s left  {text}", file=sys.stderr, flush=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
