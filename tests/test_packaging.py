"""What is packaged: a complete source distribution, and wheels whose names say what they need."""

from __future__ import annotations

import subprocess
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest
from tools import wheels
from tools.matrix import find_python

from tests.places import ROOT

LEFT_OUT = {".gitignore"}


def sorted_in(path: str, rules: list[list[str]]) -> bool:
    """Whether MANIFEST.in, or setuptools by itself, puts a file of the repository into the source distribution."""
    if path.startswith("src/") or path in ("MANIFEST.in", "pyproject.toml", "setup.py"):
        return True
    return any(
        path.startswith(f"{words[1]}/") if words[0] == "graft" else any(fnmatch(path, word) for word in words[1:])
        for words in rules
        if words[0] in ("graft", "include")
    )


def test_every_file_of_the_repository_is_in_the_source_distribution() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("this is no checkout")
    rules = [line.split() for line in (ROOT / "MANIFEST.in").read_text(encoding="utf-8").splitlines() if line]
    missing = [path for path in listed.stdout.splitlines() if path not in LEFT_OUT and not sorted_in(path, rules)]
    assert missing == []


def write_wheel(folder: Path, machine: str, needs: bytes, of: str | None = None, name: str = wheels.KERNELS) -> Path:
    path = folder / f"dynamicgate-0-cp310-abi3-{wheels.TAG}_{machine}.whl"
    number = wheels.ELF_MACHINES[of or machine]
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(name, b"\x7fELF" + bytes(14) + number.to_bytes(2, "little") + b"\0GLIBC_2.17\0" + needs)
    return path


@pytest.mark.parametrize("machine", wheels.MACHINES)
def test_a_wheel_says_what_it_needs(tmp_path: Path, machine: str) -> None:
    assert wheels.check_wheel(write_wheel(tmp_path, machine, b"\0GLIBC_2.28\0")) == "2.28"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"needs": b"\0GLIBC_2.34\0"}, "needs glibc"),
        ({"needs": b"", "of": "aarch64"}, "another machine"),
        ({"needs": b"", "name": "dynamicgate/__init__.py"}, "has no"),
    ],
)
def test_a_wheel_that_breaks_its_promise_is_refused(tmp_path: Path, wrong: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wheels.check_wheel(write_wheel(tmp_path, "x86_64", **wrong))  # type: ignore[arg-type]


def test_a_python_that_is_not_there_is_not_found() -> None:
    assert find_python("2.1") is None
