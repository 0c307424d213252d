"""Timing on a GPU: rivals in turn, medians of single calls, while the cache holds something else.

So weights come from memory, as they do between the other layers of a model. The device has other work until a call is
launched in full: a time is that of the device, which remains where launches are recorded or run ahead.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

HOPELESS = 1.5  # so many times slower than the best in the first rounds: time it no more
MOST_FILLS = 256
FIRST_ROUNDS, LEAST_ROUNDS, MOST_ROUNDS = 3, 7, 200
Call = Callable[[Tensor], Tensor]


def race(calls: Mapping[str, Call], xs: Sequence[Tensor], seconds: float) -> dict[str, float]:
    """Median microseconds of one call of each rival. All of them have run before."""
    device = xs[0].device
    other = torch.empty(2 * _cache_bytes(device), dtype=torch.int8, device=device)
    other_us, _ = _device_us(other.zero_, other.zero_)
    fills = {name: 1 + math.ceil(1.5 * _launch_us(call, xs[0]) / other_us) for name, call in calls.items()}

    def one(name: str, x: Tensor) -> float:
        while True:
            us, late = _device_us(lambda: calls[name](x), *[other.zero_] * fills[name])
            if not late or fills[name] >= MOST_FILLS:
                return us
            fills[name] *= 2  # whatever else kept the CPU from launching is not this rival's fault

    seen: dict[str, list[float]] = {name: [] for name in calls}
    order, started, number = list(calls), time.perf_counter(), 0
    while number < LEAST_ROUNDS or (number < MOST_ROUNDS and time.perf_counter() - started < seconds):
        for name in order:
            seen[name].append(one(name, xs[number % len(xs)]))
        order.append(order.pop(0))  # nobody always runs behind the same neighbour
        number += 1
        if number == FIRST_ROUNDS:
            best = min(statistics.median(times) for times in seen.values())
            order = [name for name in order if statistics.median(seen[name]) <= HOPELESS * best]
    return {name: statistics.median(times) for name, times in seen.items()}


def _device_us(call: Callable[[], object], *before: Callable[[], object]) -> tuple[float, bool]:
    """Microseconds of a call on the device, and whether the device was there before all of it was launched: then it has
    waited, and the time is too long."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for work in before:
        work()
    start.record()
    call()
    end.record()
    late = bool(start.query())
    end.synchronize()
    return 1e3 * start.elapsed_time(end), late


def _launch_us(call: Call, x: Tensor) -> float:
    """How long it takes until a call is launched; the longest of a few, because a device that waits spoils a time."""
    found = []
    for _ in range(3):
        torch.cuda.synchronize(x.device)
        start = time.perf_counter()
        call(x)
        found.append(1e6 * (time.perf_counter() - start))
    return max(found)


def _cache_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
