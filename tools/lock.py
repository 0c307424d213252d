"""`python -m tools.lock`: requirements.lock, every package of the development set with its version and its checksums.

Versions are those that are installed here, where the tests ran. What only the other kind of machine needs (the CUDA
packages of torch on x86-64) is read from the metadata in the package index. Checksums are those of all files of a
version that the index lists, so that one file serves Linux on x86-64 and on aarch64.
"""

from __future__ import annotations

import html
import re
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urljoin

import tomllib
from pip._internal.models.index import PyPI
from pip._internal.network.lazy_wheel import dist_from_wheel_url
from pip._internal.network.session import PipSession
from pip._vendor.packaging.requirements import Requirement
from pip._vendor.packaging.specifiers import SpecifierSet
from pip._vendor.packaging.utils import canonicalize_name
from pip._vendor.packaging.version import Version

ROOT = Path(__file__).parents[1]
MACHINES = ("x86_64", "aarch64")
BUILD = ("setuptools>=77",)
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
    """The version of each package that this kind of machine needs."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    waiting = [(text, "") for text in requirements()]
    while waiting:
        waiting.sort(key=lambda one: "==" in one[0])  # an exact version before a range that it is in
        text, extra = waiting.pop()
        asked = Requirement(text)
        here = {"platform_machine": machine, "platform_system": "Linux", "sys_platform": "linux", "extra": extra}
        if asked.marker is not None and not asked.marker.evaluate(here):
            continue
        name = canonicalize_name(asked.name)
        key = f"{name}[{','.join(sorted(asked.extras))}]"
        if key in seen:
            continue
        seen.add(key)
        found[name] = version_of(name, asked.specifier)
        needs = requires(name, found[name], machine)
        waiting += [(need, of) for of in ("", *asked.extras) for need in needs]
    return found


def version_of(name: str, asked: SpecifierSet) -> str:
    """What is installed, or else the newest version that was asked for."""
    try:
        return distribution(name).version.partition("+")[0]
    except PackageNotFoundError:
        listed = {Version(text) for text in (_version_of(file.filename) for file in files_of(name))}
        return str(max(asked.filter(listed)))


def requires(name: str, version: str, machine: str) -> list[str]:
    """What a package asks for: torch asks for more on x86-64, and what it asks for is not installed elsewhere."""
    if not name.startswith(("torch", "nvidia", "cuda")):
        return distribution(name).requires or []
    wanted = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    files = [file for file in files_of(name) if _version_of(file.filename) == version]
    wheels = [file for file in files if f"-{wanted}-{wanted}-" in file.filename or "-none-" in file.filename]
    wheel = min(wheels, key=lambda file: machine not in file.filename)
    found = dist_from_wheel_url(name, wheel.url, PipSession())  # of a large file only the part that says it travels
    return found.metadata.get_all("Requires-Dist") or []


class Listed(NamedTuple):
    """One file of a package."""

    filename: str
    url: str
    sha256: str


@cache
def files_of(name: str) -> list[Listed]:
    """All files of a package, as the index lists them."""
    page = f"{PyPI.simple_url}/{name}/"
    with urllib.request.urlopen(page, timeout=120) as answer:
        text = answer.read().decode()
    links = re.findall(r'<a\s[^>]*?href="([^"#]+)#sha256=([0-9a-f]{64})"[^>]*>\s*([^<\s]+)\s*</a>', text)
    return [Listed(filename, urljoin(page, html.unescape(url)), digest) for url, digest, filename in links]


def checksums(package: tuple[str, str]) -> list[str]:
    """sha256 of every file of this version."""
    name, version = package
    return sorted({file.sha256 for file in files_of(name) if _version_of(file.filename) == version})


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
