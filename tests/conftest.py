"""What every test runs under: a fixed seed, and uninitialised memory that is poisoned."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest
import torch
from benchmarks import run_all

from tests import gpu_record


def pytest_configure() -> None:
    """A shell that starts tests in the background makes them deaf to Ctrl-C, which some of them are about."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _seeded_and_poisoned() -> Iterator[None]:
    """Under deterministic algorithms `torch.empty` is filled with NaN: a result that reads memory it did not write
    cannot go unnoticed."""
    torch.manual_seed(0)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not torch.cuda.is_available())  # on a GPU it needs a cuBLAS workspace setting
    yield
    torch.use_deterministic_algorithms(before)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say when the GPU tests last passed, whether kernels have changed since, and which benchmarks are out of date."""
    if not torch.cuda.is_available():
        terminalreporter.write_line(gpu_record.summary())
    terminalreporter.write_line(run_all.summary())
