"""`python -m tools.lock`: requirements.lock, every package of the development set with its version and its checksums.

Versions are those that pip chooses for Linux on x86-64 and on aarch64 with the Python that runs this, under
constraints.txt; checksums are those of all files of a version that the package index lists, so that one file serves
both. It needs the index, and takes a minute.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomllib
from pip._internal.models.index import PyPI

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
BUILD = ("setuptools>=77", "wheel")
HEADER = """# Made by `python -m tools.lock` for Python {version} on Linux, x86-64 and aarch64. `make venv LOCK=1` uses
# it: pip then refuses every file whose checksum is not listed here.
"""


def requirements() -> list[str]:
    """What `.[dev]` asks for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    own = [*project["dependencies"], *BUILD]
    waiting = ["dev"]
    while waiting:
        for text in extras[waiting.pop()]:
            if text.startswith("dynamicgate["):
                waiting += text.removeprefix("dynamicgate[").removesuffix("]").split(",")
            else:
                own.append(text)
    return own


def chosen(machine: str) -> dict[str, str]:
    """The version of each package that pip would install on this kind of machine."""
    names = (*(f"manylinux_2_{minor}" for minor in range(28, 4, -1)), "manylinux2014", "manylinux2010", "manylinux1")
    platforms = [f"{name}_{machine}" for name in names]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
        command += ["--isolated", "--target", folder, "--only-binary=:all:", "--report", str(report)]
        command += ["-c", str(ROOT / "constraints.txt"), *(f"--platform={name}" for name in platforms)]
        subprocess.run([*command, *requirements()], check=True)
        found = json.loads(report.read_text(encoding="utf-8"))["install"]
    return {one["metadata"]["name"].lower().replace("_", "-"): one["metadata"]["version"] for one in found}


def checksums(package: tuple[str, str]) -> list[str]:
    """sha256 of every file of this version."""
    name, version = package
    asked = urllib.request.Request(
        f"{PyPI.simple_url}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    with urllib.request.urlopen(asked, timeout=120) as answer:
        files: list[dict[str, Any]] = json.load(answer)["files"]
    return sorted({file["hashes"]["sha256"] for file in files if _version_of(file["filename"]) == version})


def _version_of(filename: str) -> str:
    if filename.endswith(".whl"):
        return filename.split("-")[1]
    return filename.removesuffix(".tar.gz").removesuffix(".zip").rpartition("-")[2]


def main() -> None:
    """Write the file."""
    by_machine = {machine: chosen(machine) for machine in MACHINES}
    packages = sorted({package for found in by_machine.values() for package in found.items()})
    with ThreadPoolExecutor(8) as pool:
        sums = dict(zip(packages, pool.map(checksums, packages), strict=True))
    lines = [HEADER.format(version=".".join(map(str, sys.version_info[:2])))]
    for name, version in packages:
        only = [machine for machine in MACHINES if by_machine[machine].get(name) == version]
        marker = "" if len(only) == len(MACHINES) else f' ; platform_machine == "{only[0]}"'
        if not sums[name, version]:
            raise ValueError(f"the index lists no file of {name} {version}")
        hashes = "".join(f" \\\n    --hash=sha256:{digest}" for digest in sums[name, version])
        lines.append(f"{name}=={version}{marker}{hashes}\n")
    (ROOT / "requirements.lock").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
