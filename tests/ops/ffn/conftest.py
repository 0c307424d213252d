"""Kernels are tested on a GPU, and everywhere in Triton's interpreter. That is slow, and needs a process of its own,
because Triton reads its environment once, when it is imported."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.interpreted import run_interpreted_tests
from tests.ops.ffn.compiled import Compiled
from tests.places import ROOT


@pytest.fixture(autouse=True)
def _nothing_compiled_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test counts only the kernels that it compiles itself."""
    monkeypatch.setattr(Compiled, "compiled", set())


@pytest.fixture
def for_hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled for Hopper once, and again when anything that Triton makes its key of has changed: the
    source and what it calls, the arguments, the options, Triton, its assembler. Their sizes are read from the file."""
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(ROOT / "build" / "test-triton"))


@pytest.fixture
def interpreted() -> Callable[..., str]:
    """Run files of tests from this folder with interpreted kernels."""
    return lambda *names: run_interpreted_tests(*(Path(__file__).parent / name for name in names))
