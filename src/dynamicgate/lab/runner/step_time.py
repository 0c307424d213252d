"""Training time of a model relative to the dense network, on a machine that also does other things.

Both take steps in turn in one process, a few at a time; the median of the ratios is kept. So other work on the machine
slows both alike, and what the machine is matters little.
"""

from __future__ import annotations

import statistics
import time

import torch

from dynamicgate.lab.runner.jobs import Step

CHUNK = 2
LEAST_ROUNDS = 3


def relative_seconds(ours: Step, dense: Step, seconds: float) -> float:
    """How many times as long a training step of `ours` takes as one of `dense`."""
    for step in (ours, dense):  # what is only done once: memory, kernels, the optimizer's moments
        _timed(step)
    ratios: list[float] = []
    start = time.perf_counter()
    while len(ratios) < LEAST_ROUNDS or time.perf_counter() - start < seconds:
        ratios.append(_timed(ours) / _timed(dense))
    return statistics.median(ratios)


def _timed(step: Step) -> float:
    _settle()
    start = time.perf_counter()
    for _ in range(CHUNK):
        step()
    _settle()
    return time.perf_counter() - start


def _settle() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
