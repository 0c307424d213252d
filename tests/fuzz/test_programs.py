"""Packed programs with changed words: the validator refuses them, or the kernels stay within their memory."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.ops.case_file import write_cases
from tests.ops.test_native import SANITIZED, build_driver, machine_levels

SEED, COUNT = 1, 5000


def run_driver(folder: Path, seed: int, count: int) -> str:
    """Change `count` programs under the sanitizers; what the driver printed."""
    write_cases(folder / "cases.bin", 60, 30)
    source = Path(__file__).parent / "program_driver.cpp"
    driver = build_driver(folder, "g++", machine_levels(), *SANITIZED, source=source, also=("validate.cpp",))
    command = [str(driver), str(folder / "cases.bin"), str(seed), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-500:]}{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.slow
def test_changed_programs_are_refused_or_stay_within_their_memory(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    out = run_driver(tmp_path, SEED, COUNT)
    refused = int(out.split(", ")[1].split()[0])
    assert COUNT // 2 < refused < COUNT, "the fuzz must reach both the validator and the kernels"
