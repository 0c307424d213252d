"""Progress of a run: a rich bar in a terminal, a bar in a notebook, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from html import escape
from types import TracebackType
from typing import Any

NOTEBOOK_EVERY = 0.25  # seconds: a notebook redraws its whole cell


class Progress:
    """A progress bar. Use it as a context manager and call `update` with the fraction done and a short text. A run that
    ends without an error ends at 100 %, also one that stopped early."""

    def __init__(self, label: str, *, show: bool = True, plain_every: float = 10.0) -> None:
        """`plain_every` seconds between lines where the output is neither a terminal nor a notebook."""
        self.label = label
        self.show = show
        self.plain_every = plain_every
        self._bar: Any = None
        self._task: Any = None
        self._cell: Any = None
        self._text = ""
        self._lines = 0
        self._printed = self._started = time.monotonic()

    def __enter__(self) -> Progress:
        if not self.show:
            return self
        if in_notebook():
            from IPython.display import HTML, display

            self._cell = display(HTML(self._html(0.0)), display_id=True)
        elif sys.stderr.isatty():
            self._start_bar()
        return self

    def _start_bar(self) -> None:
        try:
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as RichProgress
        except ImportError:
            return  # rich is an optional extra; print plain lines
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[text]}"),
        )
        self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self.label, total=1.0, text="")

    def update(self, fraction: float, text: str) -> None:
        """Show that this fraction of the work is done."""
        if not self.show:
            return
        self._text = text
        if self._bar is not None:
            self._bar.update(self._task, completed=fraction, text=text)
            return
        now = time.monotonic()
        if now - self._printed >= (self.plain_every if self._cell is None else NOTEBOOK_EVERY):
            self._printed = now
            self._draw(fraction, f"{(now - self._started) * (1.0 - fraction) / max(fraction, 1e-9):.0f} s left")

    def _draw(self, fraction: float, when: str) -> None:
        if self._cell is not None:
            from IPython.display import HTML

            self._cell.update(HTML(self._html(fraction, when)))
            return
        self._lines += 1
        print(f"{self.label}  {fraction:4.0%}  {when}  {self._text}", file=sys.stderr, flush=True)

    def _html(self, fraction: float, when: str = "") -> str:
        words = escape("  ".join(part for part in (f"{fraction:.0%}", when, self._text) if part))
        bar = f'<progress value="{fraction:.4f}" max="1" style="width:16em;vertical-align:middle"></progress>'
        return f"<div>{escape(self.label)} {bar} <code>{words}</code></div>"

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.show and kind is None and (self._cell is not None or self._lines):
            self._draw(1.0, f"{time.monotonic() - self._started:.0f} s")


def in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel, whose output can be redrawn."""
    ipython = sys.modules.get("IPython")  # a kernel has imported it
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")
