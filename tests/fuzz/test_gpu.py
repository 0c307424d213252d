"""A few cases of the fuzz of the GPU kernels, in Triton's interpreter, which needs a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fuzz.gpu.menu import MENU, SMALL, WEIGHTS, draw
from tests.interpreted import run_interpreted


@pytest.mark.slow
def test_interpreted_cases_are_right(tmp_path: Path) -> None:
    out = tmp_path / "record.json"
    words = ["--device", "cpu", "--count", "6", "--seed", "4", "--out", str(out)]
    run_interpreted("-W", "ignore", "-m", "tests.fuzz.gpu", *words)
    run = json.loads(out.read_text("utf-8"))["gpu"]
    assert (run["count"], run["wrong"]) == (6, 0)


def test_every_seed_draws_the_same_case_again_and_all_kinds_are_drawn() -> None:
    cases = [draw(seed, "cuda") for seed in range(2000)]
    assert cases == [draw(seed, "cuda") for seed in range(2000)]
    assert {(case.kind, case.number) for case in cases} == {(kind, n) for kind in MENU for n in range(len(MENU[kind]))}
    assert SMALL.keys() < WEIGHTS.keys() < MENU.keys()
    assert draw(7, "cuda", ("fused",)).kind == "fused"
