"""`python -m tests.fuzz.asan`: the fuzz of plan files with kernels that were built with the address and undefined
behaviour sanitizers, in a copy of the package in a temporary folder. Arguments are those of `python -m tests.fuzz`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from setup import FLAGS, KERNEL, LEVELS, SOURCES

from dynamicgate import files
from tests.places import ROOT

SANITIZED = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fPIC")


def build(package: Path) -> None:
    """The kernels, sanitized, in this copy of the package."""
    flags = [flag for flag in FLAGS if flag != "-O3"]
    objects = []
    for level, extra in LEVELS.items():
        objects.append(package / f"{level}.o")
        command = ["g++", *flags, *SANITIZED, *extra, f"-DDG_LEVEL={level}", "-c", str(ROOT / KERNEL)]
        subprocess.run([*command, "-o", str(objects[-1])], check=True)
    sources = [str(ROOT / "csrc" / name) for name in SOURCES]
    library = package / "ops" / "_kernels.abi3.so"
    command = ["g++", "-shared", *flags, *SANITIZED, *sources, *map(str, objects), "-ldl", "-o", str(library)]
    subprocess.run(command, check=True)


def run_sanitized(module: str, words: Sequence[str]) -> int:
    """`python -m module words` with sanitized kernels, in a copy of the package; returns the exit status."""
    commit = str(files.environment("")["commit"])
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "dynamicgate"
        shutil.copytree(ROOT / "src" / "dynamicgate", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        build(package)
        asks = [["g++", f"-print-file-name={name}"] for name in ("libasan.so", "libubsan.so")]
        runtime = [subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip() for ask in asks]
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(runtime),
            "ASAN_OPTIONS": "detect_leaks=0,abort_on_error=1,quarantine_size_mb=16",  # Python never frees all it has
            "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}",
            "OMP_NUM_THREADS": "1",
            "FUZZ_MB": "1000",  # the sanitizers need memory of their own
            "DYNAMICGATE_COMMIT": "dirty" if commit.endswith("-dirty") else commit,  # the copy has no history
        }
        command = [sys.executable, "-m", module, *words]
        return subprocess.run(command, env=environment, check=False, cwd=folder).returncode


if __name__ == "__main__":
    sys.exit(run_sanitized("tests.fuzz", ["--kinds", "plan", "--sanitized", *sys.argv[1:]]))
