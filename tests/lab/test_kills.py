"""Runs that are killed while they write, and two at once in one folder. `tests.fuzz.kills` kills many more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.places import ROOT


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits_and_two_writers_never_mix() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.kills", "--count", "4", "--seed", "3"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
