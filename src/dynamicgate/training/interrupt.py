"""Delay Ctrl-C to the end of a training step, so that the checkpoint can be continued to the same result."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

SECOND_PRESS = 1.0  # seconds; sooner it is the same Ctrl-C, passed on by torchrun to processes that have it already


class Interrupts:
    """While entered, Ctrl-C only sets `requested`; a second Ctrl-C, a moment later, interrupts at once. The same holds
    for SIGTERM where its handler is that of Ctrl-C. The caller's own handlers and other threads are left alone."""

    def __init__(self) -> None:
        """Nothing requested yet."""
        self.requested = False
        self._requested_at = 0.0
        self._saved_handlers: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._saved_handlers[number] = signal.signal(number, self._request)
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.requested and now - self._requested_at > SECOND_PRESS:
            raise KeyboardInterrupt
        if not self.requested:
            self.requested, self._requested_at = True, now

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._saved_handlers.items():
            signal.signal(number, handler)
