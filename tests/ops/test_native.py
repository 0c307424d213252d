"""The C++ kernels without Python: under sanitizers, from both compilers, and on emulated x86 processors."""

from __future__ import annotations

import platform
import random
import shutil
import struct
import subprocess
from pathlib import Path
from typing import BinaryIO

import pytest
import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops import chain
from dynamicgate.ops.chain.layers import LAYOUTS
from dynamicgate.ops.chain.stages import DECIDE
from tests.ops.chains import Sketch, build, expect, inputs_for
from tests.ops.staged_chains import build_staged, expect_staged, rows_for
from tests.places import ROOT

FLAGS = ["-std=c++17", "-ffp-contract=fast", "-Wall", "-Wextra", "-Werror", "-pthread"]
X86_LEVELS = {"sse2": [], "avx2": ["-mavx2", "-mfma"], "avx512": ["-mavx512f", "-mavx2", "-mfma"]}


def machine_levels() -> dict[str, list[str]]:
    return {"x86_64": X86_LEVELS, "aarch64": {"neon": []}}.get(platform.machine(), {"plain": []})


def build_driver(folder: Path, compiler: str, levels: dict[str, list[str]], *flags: str) -> Path:
    objects = []
    for level, extra in levels.items():
        objects.append(folder / f"{level}.o")
        command = [compiler, *FLAGS, *flags, *extra, f"-DDG_LEVEL={level}", "-c", str(ROOT / "csrc/chain.cpp")]
        _call([*command, "-o", str(objects[-1])])
    sources = [str(ROOT / "csrc" / name) for name in ("cpu_level.cpp", "pool.cpp")]
    sources.append(str(Path(__file__).parent / "driver.cpp"))
    driver = folder / "driver"
    _call([compiler, *FLAGS, *flags, *sources, *map(str, objects), "-o", str(driver)])
    return driver


def _call(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with two hundred random chains, fifty in stages, and their results."""
    path = tmp_path_factory.mktemp("cases") / "cases.bin"
    pick = random.Random(0)
    with path.open("wb") as file:
        for seed in range(200):
            sketches = [
                Sketch(
                    outputs=pick.choice([1, 3, 17, 63, 64, 100]), layout=pick.choice(LAYOUTS),
                    block=pick.choice([0, 1, 7, 16, 32]), rank=pick.choice([0, 3]),
                    cut=pick.choice(["all", "none", "some", "each", "top"]), top_k=pick.choice([0, 2]),
                    tau=pick.choice([None, 0.7]), soft_width=pick.choice([None, 0.8]),
                    activation=pick.choice(tuple(ACTIVATIONS)), skip_zeros=seed % 2 == 0,
                    gate_layout=pick.choice(["panels", "csr", "vectors"]),
                )
                for _ in range(pick.randint(1, 3))
            ]  # fmt: skip
            if seed % 10 == 0:
                sketches[0] = Sketch(48, block=16, given=True)
            layers = build(pick.choice([1, 5, 16, 65]), sketches, seed)
            x, factor = inputs_for(layers, pick.choice([1, 2, 9, 33, 300]), seed)
            expected, clear = expect(x, layers, factor)
            x, expected = x[clear], expected[clear].float()
            factors = torch.empty(0) if factor is None else factor[clear]
            _write_case(file, chain.pack(layers), x, factors, expected)
        for seed in range(50):
            counts = [16, 1, 5, 33, 64]
            stages, layers_of = pick.randint(2, 4), pick.randint(1, 3)
            staged = build_staged(
                [[pick.choice(counts[k == 0 :]) for k in range(stages)] for _ in range(layers_of)],
                layout=[pick.choice(LAYOUTS) for _ in range(12)], activation=pick.choice(tuple(ACTIVATIONS)),
                decide=pick.choice(DECIDE), skip_zeros=seed % 2 == 0, seed=seed,
            )  # fmt: skip
            x = rows_for(staged, pick.choice([1, 2, 9, 33, 300]), zeros=pick.choice([0.1, 0.7]))
            expected, _, clear = expect_staged(x, staged)
            _write_case(file, chain.pack_staged(staged), x[clear], torch.empty(0), expected[clear].float())
    return path


def _write_case(file: BinaryIO, packed: chain.Packed, x: Tensor, factors: Tensor, expected: Tensor) -> None:
    weights, program, outputs = packed
    file.write(struct.pack("6q", *x.shape, outputs, program.numel(), weights.numel(), factors.numel()))
    for part in (program, weights, x, factors, expected):
        file.write(part.contiguous().numpy().tobytes())


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_are_clean_under_address_and_undefined_sanitizers(compiler: str, cases: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    flags = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    driver = build_driver(tmp_path, compiler, machine_levels(), *flags)
    assert _call([str(driver), str(cases)]) == "250 cases on 1 levels\n" or machine_levels() == X86_LEVELS


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_kernels_match_the_reference_from_both_compilers(compiler: str, cases: Path, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} on this machine")
    driver = str(build_driver(tmp_path, compiler, machine_levels(), "-O3"))
    assert _call([driver, str(cases)]).startswith("250 cases")
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
    assert _call([*emulator, str(cases)]).startswith("250 cases")
