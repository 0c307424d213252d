"""Wheels for Linux on x86-64 and aarch64, and the source distribution, in dist/: `make wheels`.

One compiler for both, wherever this runs: zig (the package `ziglang`), which brings the headers of every glibc. The
kernels look up the Python functions they need, so that one wheel fits every Python from 3.10 on (abi3).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MACHINES = ("x86_64", "aarch64")
GLIBC = (2, 28)  # as torch itself
TAG = f"manylinux_{GLIBC[0]}_{GLIBC[1]}"
NEEDED = re.compile(rb"GLIBC_(\d+)\.(\d+)")
KERNELS = "dynamicgate/ops/_kernels.abi3.so"
ELF_MACHINES = {"x86_64": 62, "aarch64": 183}


def main() -> None:
    """Build everything and check what was built."""
    out = ROOT / "dist"
    run("-m", "build", "--sdist", "--no-isolation", "--outdir", str(out))
    for machine in MACHINES:
        with tempfile.TemporaryDirectory() as folder:
            build_wheel(machine, Path(folder), out)
    for path in sorted(out.glob("*.whl")):
        print(f"{path.name}: needs glibc {check_wheel(path)}")


def build_wheel(machine: str, folder: Path, out: Path) -> None:
    """Build the wheel for one machine in `folder`, and move it to `out` with the tag of the glibc it was built for."""
    compiler = folder / "compiler"
    target = f"{machine}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    compiler.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang c++ -target {target} "$@"\n', encoding="utf-8")
    compiler.chmod(0o755)
    environment = {
        **os.environ,
        **{name: str(compiler) for name in ("CC", "CXX")},
        **dict.fromkeys(("LDSHARED", "LDCXXSHARED"), f"{compiler} -shared"),
        "CFLAGS": "",
        "LDFLAGS": "-s",
        "_PYTHON_HOST_PLATFORM": f"linux-{machine}",
    }
    config = [f"--config-setting=--build-option=build --build-base={folder / 'build'}"]
    run("-m", "build", "--wheel", "--no-isolation", *config, "--outdir", str(folder), env=environment)
    (wheel,) = folder.glob("*.whl")
    run("-m", "wheel", "tags", "--remove", "--platform-tag", f"{TAG}_{machine}", str(wheel))
    (wheel,) = folder.glob("*.whl")
    out.mkdir(exist_ok=True)
    (out / wheel.name).write_bytes(wheel.read_bytes())


def check_wheel(path: Path) -> str:
    """The newest glibc that the kernels need; ValueError if that is newer than the name of the wheel says, or if there
    are no kernels for its machine."""
    machine = path.stem.partition(f"{TAG}_")[2]
    with zipfile.ZipFile(path) as wheel:
        if KERNELS not in wheel.namelist():
            raise ValueError(f"{path.name} has no {KERNELS}: see the warnings of the compiler above")
        content = wheel.read(KERNELS)
    if int.from_bytes(content[18:20], "little") != ELF_MACHINES[machine]:
        raise ValueError(f"{path.name}: its kernels are for another machine")
    newest = max((int(a), int(b)) for a, b in NEEDED.findall(content))
    if newest > GLIBC:
        raise ValueError(f"{path.name} needs glibc {newest}, and its name promises {GLIBC}")
    return f"{newest[0]}.{newest[1]}"


def run(*arguments: str, env: dict[str, str] | None = None) -> None:
    """Run Python with these arguments in the checkout."""
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True, env=env)


if __name__ == "__main__":
    main()
