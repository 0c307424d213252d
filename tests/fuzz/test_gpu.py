"""A few cases of the fuzz of the GPU kernels, in Triton's interpreter, which needs a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.gpu.menu import MENU, SMALL, WEIGHTS, draw
from tests.places import ROOT


@pytest.mark.slow
def test_interpreted_cases_are_right(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    out = tmp_path / "record.json"
    words = ["--device", "cpu", "--count", "6", "--seed", "4", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.fuzz.gpu", *words],
        cwd=ROOT,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    run = json.loads(out.read_text("utf-8"))["gpu"]
    assert (run["count"], run["wrong"]) == (6, 0)


def test_every_seed_draws_the_same_case_again_and_all_kinds_are_drawn() -> None:
    cases = [draw(seed, "cuda") for seed in range(2000)]
    assert cases == [draw(seed, "cuda") for seed in range(2000)]
    assert {(case.kind, case.number) for case in cases} == {(kind, n) for kind in MENU for n in range(len(MENU[kind]))}
    assert SMALL.keys() < WEIGHTS.keys() < MENU.keys()
    assert draw(7, "cuda", ("fused",)).kind == "fused"
