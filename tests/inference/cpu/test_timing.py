"""Timing takes turns, runs dominated calls rarely, and keeps to its seconds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from dynamicgate.inference.cpu.timing import RARELY, time_calls


def sleeper(ms: float, log: list[str], name: str, seconds: list[float] | None = None) -> Callable[[Tensor], None]:
    """A call that takes `ms` or, on a busy machine, longer; `seconds` gets how long."""

    def call(_x: Tensor) -> None:
        log.append(name)
        started = time.perf_counter()
        time.sleep(ms / 1e3)
        if seconds is not None:
            seconds.append(time.perf_counter() - started)

    return call


def test_times_are_medians_of_single_calls_in_microseconds() -> None:
    log: list[str] = []
    seconds: dict[str, list[float]] = {"a": [], "b": []}
    calls = {name: sleeper(ms, log, name, seconds[name]) for name, ms in (("a", 2), ("b", 6))}
    found = time_calls(calls, [torch.zeros(1, 1)] * 2, 0.2)
    assert found["a"] >= 2000
    assert found["b"] >= 6000
    for name, each in seconds.items():
        least, most = 1e6 * min(each), 1e6 * statistics.quantiles(each, n=10)[-1]
        assert least <= found[name] < 1.2 * most


def test_a_dominated_call_runs_rarely() -> None:
    log: list[str] = []
    time_calls({"fast": sleeper(0.2, log, "fast"), "slow": sleeper(20, log, "slow")}, [torch.zeros(1, 1)], 0.3)
    assert log.count("fast") > RARELY / 2 * log.count("slow") > 0
