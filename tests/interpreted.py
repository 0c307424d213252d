"""Triton's interpreter needs a process of its own: Triton reads its environment once, when it is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT


def run_interpreted(*words: str) -> str:
    """What `python WORDS` prints with interpreted kernels; it has to succeed. Skips where there is no Triton."""
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def run_interpreted_tests(*paths: Path) -> str:
    """The same for files of tests."""
    return run_interpreted("-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *map(str, paths))
