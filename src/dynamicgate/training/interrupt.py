"""Ctrl-C between two steps: a checkpoint from the middle of one would not continue to the same result."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

IMPATIENCE = 1.0  # seconds; torchrun passes on the Ctrl-C that its processes have already received


class Interrupts:
    """While entered, Ctrl-C only sets `asked`; a second one, a moment later, interrupts at once. So does SIGTERM where
    it was made to act like Ctrl-C. Handlers of the caller's own, and other threads, are left alone."""

    def __init__(self) -> None:
        """Nothing asked yet."""
        self.asked = False
        self._asked_at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._before[number] = signal.signal(number, self._ask)
        return self

    def _ask(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked and now - self._asked_at > IMPATIENCE:
            raise KeyboardInterrupt
        if not self.asked:
            self.asked, self._asked_at = True, now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
