"""One small comparison that several tests read, and signals that stay as the test runner set them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from dynamicgate.lab.cli import main

from .quick_runs import QUICK


@pytest.fixture(autouse=True)
def _restore_signals() -> Iterator[None]:
    """`main` makes SIGTERM act like Ctrl-C, which is right for a command and wrong for a test runner."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a comparison, and what it printed; its progress goes to standard error."""
    out = tmp_path_factory.mktemp("compared")
    printed, progress = StringIO(), StringIO()
    with redirect_stdout(printed), redirect_stderr(progress):
        assert main(["compare", "--data", "digits", "--seeds", "1", *QUICK, "--out", str(out)]) == 0
    assert [line.split()[:2] for line in progress.getvalue().splitlines()][-1] == ["[6/6]", "sparsify"]
    return out, printed.getvalue()


@pytest.fixture
def model(compared: tuple[Path, str]) -> Path:
    return next(compared[0].glob("runs/gate-*/model.safetensors"))
