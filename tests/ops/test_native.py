"""The C++ kernels without Python: under sanitizers, from both compilers, and on emulated x86 processors."""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
from filelock import FileLock

from tests.ops.case_file import write_cases
from tests.places import ROOT

DRIVER = Path(__file__).parent / "driver.cpp"
FLAGS = ["-std=c++17", "-ffp-contract=fast", "-Wall", "-Wextra", "-Werror", "-pthread"]
# Not optimised: every access of the source is checked, and the compiler takes half as long as with -O1.
SANITIZED = ("-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
X86_LEVELS = {"sse2": [], "avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx2", "-mfma"]}


def machine_levels() -> dict[str, list[str]]:
    return {"x86_64": X86_LEVELS, "aarch64": {"neon": []}}.get(platform.machine(), {"plain": []})


def build_driver(
    folder: Path,
    compiler: str,
    levels: dict[str, list[str]],
    *flags: str,
    source: Path = DRIVER,
    also: tuple[str, ...] = (),
) -> Path:
    """`also`: sources of csrc that this driver needs besides those of the kernels."""
    objects = [kernels_of(compiler, level, (*flags, *extra)) for level, extra in levels.items()]
    sources = [str(ROOT / "csrc" / name) for name in ("cpu_level.cpp", "pool.cpp", *also)]
    sources.append(str(source))
    driver = folder / "driver"
    _call([compiler, *FLAGS, *flags, *sources, *map(str, objects), "-o", str(driver)])
    return driver


def kernels_of(compiler: str, level: str, flags: tuple[str, ...]) -> Path:
    """The kernels for one level, compiled once for all drivers: under sanitizers that takes a minute."""
    command = [compiler, *FLAGS, *flags, f"-DDG_LEVEL={level}", "-c", str(ROOT / "csrc/chain.cpp")]
    known = hashlib.sha256(" ".join([*command, _call([compiler, "--version"])]).encode())
    for path in sorted((ROOT / "csrc").iterdir()):
        known.update(path.read_bytes())
    folder = ROOT / "build" / "test-kernels"
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"{known.hexdigest()}.o"
    with FileLock(made.with_suffix(".lock")):  # two workers may want the same one
        if not made.exists():
            _call([*command, "-o", str(made.with_suffix(".new"))])
            made.with_suffix(".new").rename(made)
    return made


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two hundred random chains, fifty in stages, fifty with thresholds, and their results."""
    path = tmp_path_factory.mktemp("cases") / "cases.bin"
    write_cases(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_are_clean_under_address_and_undefined_sanitizers(compiler: str, cases: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    driver = build_driver(tmp_path, compiler, machine_levels(), *SANITIZED)
    assert _call([str(driver), str(cases)]) == "300 cases on 1 levels\n" or machine_levels() == X86_LEVELS


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_match_the_reference_from_both_compilers(compiler: str, cases: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    driver = str(build_driver(tmp_path, compiler, machine_levels(), "-O3"))
    assert _call([driver, str(cases)]).startswith("300 cases")
    _call([driver, "pool"])  # threads that arrive late, as next to busy processes, make the pool pause


@pytest.fixture(scope="module")
def x86_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = "x86_64-linux-gnu-g++"
    for tool in (compiler, "qemu-x86_64"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} on this machine (packages g++-x86-64-linux-gnu and qemu-user)")
    return build_driver(tmp_path_factory.mktemp("x86"), compiler, X86_LEVELS, "-O3")


# qemu has no AVX-512: that copy is compiled but must never be chosen here.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processor", "levels"),
    [("qemu64", "sse2 sse2"), ("Nehalem", "sse2 sse2"), ("Haswell", "avx2 avx2 sse2"), ("max", "avx2 avx2 sse2")],
)
def test_the_cpu_level_is_the_best_of_the_processor(processor: str, levels: str, x86_driver: Path, cases: Path) -> None:
    libraries = Path("/usr/x86_64-linux-gnu")  # where the cross compiler's package puts them; on x86 they are installed
    where = ["-L", str(libraries)] if libraries.exists() else []
    emulator = ["qemu-x86_64", *where, "-cpu", processor, str(x86_driver)]
    found = _call(emulator).strip()
    if processor == "max" and found.startswith("avx512"):
        levels = "avx512 avx512 avx2 sse2"
    if processor in ("Haswell", "max") and found == "sse2 sse2":
        pytest.skip("this qemu does not emulate AVX2 (7.2 and later do)")
    assert found == levels
    assert _call([*emulator, str(cases)]).startswith("300 cases")
