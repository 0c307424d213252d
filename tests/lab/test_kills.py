"""Runs that are killed while they write, and two at once in one folder. `tests.fuzz.kills` kills many more."""

from __future__ import annotations

import pytest

from tests import forked
from tests.places import ROOT


@pytest.mark.slow
def test_killed_runs_end_with_the_same_bits_and_two_writers_never_mix() -> None:
    words = ["-m", "tests.fuzz.kills", "--count", "4", "--seed", "3"]
    done = forked.run(words, cwd=ROOT, env={"OMP_NUM_THREADS": "1"}, seconds=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 wrong" in done.stdout
