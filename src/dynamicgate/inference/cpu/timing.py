"""Timing rivals fairly: in turn, in one process, medians; and never longer than asked."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

HOPELESS = 2.0  # so many times slower than the best in the first round: run it less often
SELDOM = 4
MOST_ROUNDS = 200


def race(calls: Mapping[str, Callable[[Tensor], object]], xs: Sequence[Tensor], seconds: float) -> dict[str, float]:
    """Median microseconds of one call of each rival.

    Every rival runs on all of `xs` (at batch 1 many rows: which units are open changes from call to call). A first call
    of each warms up, and tells how many rounds `seconds` allow; it counts only for those that get hardly any more.
    """
    with torch.inference_mode():
        first = {name: _once(call, xs[:1]) for name, call in calls.items()}
        if sum(first.values()) * len(xs) > seconds:
            xs = xs[:1]
        else:
            first = {name: _once(call, xs) for name, call in calls.items()}
        hopeless = {name for name, t in first.items() if t > HOPELESS * min(first.values())}
        spent = len(xs) * sum(t / (SELDOM if name in hopeless else 1) for name, t in first.items())
        rounds = max(1, min(MOST_ROUNDS, int(seconds / max(spent, 1e-9))))
        seen: dict[str, list[float]] = {name: [] for name in calls}
        order = list(calls)
        for number in range(rounds):
            for name in order:
                if name not in hopeless or number % SELDOM == SELDOM - 1:
                    seen[name].append(_once(calls[name], xs))
            order.append(order.pop(0))  # nobody always runs behind the same neighbour
        for name, times in seen.items():
            if len(times) < 3:
                times.append(first[name])
    return {name: 1e6 * statistics.median_low(times) for name, times in seen.items()}


def _once(call: Callable[[Tensor], object], xs: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    for x in xs:
        call(x)
    return (time.perf_counter() - start) / len(xs)


def batches_of(rows_RD: Tensor, batch: int) -> list[Tensor]:
    """Inputs of `batch` rows each, cycling through the rows there are."""
    count = 32 if batch <= 4 else 8 if batch <= 64 else 2
    index = torch.arange(count * batch) % len(rows_RD)
    return [rows_RD[part].contiguous() for part in index.split(batch)]
