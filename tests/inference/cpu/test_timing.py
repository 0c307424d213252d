"""Timing takes turns, runs dominated calls rarely, and keeps to its seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from dynamicgate.inference.cpu.timing import RARELY, time_calls


def sleeper(ms: float, log: list[str], name: str) -> Callable[[Tensor], None]:
    def call(_x: Tensor) -> None:
        log.append(name)
        time.sleep(ms / 1e3)

    return call


def test_times_are_medians_of_single_calls_in_microseconds() -> None:
    log: list[str] = []
    found = time_calls({"a": sleeper(2, log, "a"), "b": sleeper(6, log, "b")}, [torch.zeros(1, 1)] * 2, 0.2)
    assert 2000 <= found["a"] < 6000 <= found["b"]


def test_a_dominated_call_runs_rarely() -> None:
    log: list[str] = []
    time_calls({"fast": sleeper(0.2, log, "fast"), "slow": sleeper(20, log, "slow")}, [torch.zeros(1, 1)], 0.3)
    assert log.count("fast") > RARELY / 2 * log.count("slow") > 0
