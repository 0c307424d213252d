"""Kernels are tested on a GPU, and everywhere in Triton's interpreter. That is slow, and needs a process of its own,
because Triton reads its environment once, when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.ops.ffn.compiled import Compiled
from tests.places import ROOT


@pytest.fixture(autouse=True)
def _nothing_compiled_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test counts only the kernels that it compiles itself."""
    monkeypatch.setattr(Compiled, "compiled", set())


@pytest.fixture
def interpreted() -> Callable[[str], None]:
    """Run a file of tests from this folder with interpreted kernels."""
    pytest.importorskip("triton")

    def run(name: str) -> None:
        quiet = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *quiet, str(Path(__file__).parent / name)],
            cwd=ROOT,
            env={**os.environ, "TRITON_INTERPRET": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

    return run
