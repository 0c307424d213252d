from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _signals_stay_ours() -> Iterator[None]:
    """`main` makes SIGTERM act like Ctrl-C, which is right for a command and wrong for a test runner."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
