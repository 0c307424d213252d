"""Time of a training step relative to the dense network's, on a machine that is also doing other things.

Both models take a few steps in turn in one process, and the median of the ratios counts: other work on the machine
slows both alike, and the result depends little on the machine.
"""

from __future__ import annotations

import statistics
import time

import torch

from dynamicgate.lab.runner.jobs import Step

CHUNK = 2
MIN_ROUNDS = 3


def relative_seconds(ours: Step, dense: Step, seconds: float) -> float:
    """How many times as long a training step of `ours` takes as one of `dense`."""
    for step in (ours, dense):  # what is only done once: memory, kernels, the optimizer's moments
        _timed(step)
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < MIN_ROUNDS or time.perf_counter() - start < seconds:
        ratios.append(_timed(ours) / _timed(dense))
    return statistics.median(ratios)


def _timed(step: Step) -> float:
    _synchronize()
    start = time.perf_counter()
    for _ in range(CHUNK):
        step()
    _synchronize()
    return time.perf_counter() - start


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
