"""What every test runs under: a fixed seed, the same number of threads, and uninitialised memory that is poisoned."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Iterator

import pytest
import torch
from benchmarks import run_all
from hypothesis import settings

from tests import gpu_record
from tests.fuzz import record as fuzz_record

settings.register_profile("many", max_examples=10 * settings.default.max_examples)  # make fuzz
THREADS = torch.get_num_threads()


def pytest_configure() -> None:
    """A shell that starts tests in the background makes them deaf to Ctrl-C, which some of them are about."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: workers then wait for each other at the end by the length of a short test."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="module", autouse=True)
def _what_came_before_is_not_searched() -> None:
    """Take what imports and the tests of earlier files left out of the garbage collector: millions of objects of torch,
    Transformers and others, which it, and whoever asks it for the holders of a module, would search again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _as_many_threads_as_at_the_start() -> Iterator[None]:
    """The first parallel function of Numba, which Scanpy calls, sets the threads of OpenMP for torch too: two workers
    with two threads each then wait for each other until the end."""
    yield
    if torch.get_num_threads() != THREADS:
        torch.set_num_threads(THREADS)


@pytest.fixture(autouse=True)
def _seeded_and_poisoned() -> Iterator[None]:
    """Under deterministic algorithms `torch.empty` is filled with NaN: a result that reads memory it did not write
    cannot go unnoticed."""
    if torch.cuda.is_available():
        torch.manual_seed(0)
    else:
        torch.default_generator.manual_seed(0)  # the other notes its traceback for a GPU that may come
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(not torch.cuda.is_available())  # on a GPU it needs a cuBLAS workspace setting
    yield
    torch.use_deterministic_algorithms(before)


@pytest.fixture
def take(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """take(way): from now on plans of language models and encoders run that way, whatever is fastest here. What is
    fastest for the small models of tests differs from run to run."""
    from dynamicgate.inference.language.timing import Timed

    def taken(way: str) -> None:
        def choose(timed: list[Timed]) -> str:
            ways = [*timed[0].times] if timed else []
            assert way in ways, f"{way} is no candidate: {ways}"
            return way

        monkeypatch.setattr("dynamicgate.inference.language.pipeline.choose", choose)

    return taken


@pytest.fixture
def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans run natively as a whole where that is a candidate; tests say where it must be one."""
    from dynamicgate.inference.language.plan import TORCH, WHOLE

    monkeypatch.setattr(
        "dynamicgate.inference.language.pipeline.choose",
        lambda timed: WHOLE if timed and WHOLE in timed[0].times else TORCH,
    )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say when the GPU tests and the long fuzz last passed, and which of them and of the benchmarks are old."""
    if not torch.cuda.is_available():
        terminalreporter.write_line(gpu_record.summary())
    terminalreporter.write_line(fuzz_record.summary())
    terminalreporter.write_line(run_all.summary())
