"""Timing calls on a GPU: medians of single calls on the device, with cold caches.

The cache holds other data before each call, so weights come from memory, as they do between the other layers of a
model. The device is kept busy until a call is launched in full, so that a time is that of the device, which remains
where launches are captured or run ahead.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dynamicgate.inference.timing import RoundRobin

DOMINATED = 1.5  # this many times slower than the best in the first rounds: time it no more
MAX_FILLS = 256
FIRST_ROUNDS, MIN_ROUNDS, MAX_ROUNDS = 3, 7, 200
Call = Callable[[Tensor], Tensor]


def time_calls(
    calls: Mapping[str, Call], xs: Sequence[Tensor], seconds: float, *, launched_by_host: bool = False
) -> dict[str, float]:
    """Median microseconds of one call of each of `calls` on the device. All of them have run before.

    launched_by_host: of a call that the host launches for longer than the device works, the time of the host.
    """
    device = xs[0].device
    other = torch.empty(2 * _cache_bytes(device), dtype=torch.int8, device=device)
    other_us, _ = _device_us(other.zero_, other.zero_)
    launches = {name: _launch_us(call, xs[0]) for name, call in calls.items()}
    # The longest of a few, because a device that waits spoils a time.
    fills = {name: 1 + math.ceil(1.5 * max(found) / other_us) for name, found in launches.items()}

    def measure(name: str) -> float:
        x = xs[len(robin.times[name]) % len(xs)]
        while True:
            us, late = _device_us(lambda: calls[name](x), *[other.zero_] * fills[name])
            if not late or fills[name] >= MAX_FILLS:
                return us
            fills[name] *= 2  # whatever else kept the CPU from launching does not count against this call

    robin, dominated = RoundRobin(calls), set[str]()
    started, number = time.perf_counter(), 0
    while number < MIN_ROUNDS or (number < MAX_ROUNDS and time.perf_counter() - started < seconds):
        robin.run(measure, skip=dominated)
        number += 1
        if number == FIRST_ROUNDS:
            medians = {name: statistics.median(times) for name, times in robin.times.items()}
            dominated = {name for name, median in medians.items() if median > DOMINATED * min(medians.values())}
    found = {name: statistics.median(times) for name, times in robin.times.items()}
    return {name: max(us, min(launches[name])) for name, us in found.items()} if launched_by_host else found


def _device_us(call: Callable[[], object], *before: Callable[[], object]) -> tuple[float, bool]:
    """Microseconds of a call on the device, and whether the device was ready before all of it was launched: then the
    device has waited, and the time is too long."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for work in before:
        work()
    start.record()
    call()
    end.record()
    late = bool(start.query())
    end.synchronize()
    return 1e3 * start.elapsed_time(end), late


def _launch_us(call: Call, x: Tensor) -> list[float]:
    """How long it takes to launch a call, a few times."""
    found = []
    for _ in range(3):
        torch.cuda.synchronize(x.device)
        start = time.perf_counter()
        call(x)
        found.append(1e6 * (time.perf_counter() - start))
    return found


def _cache_bytes(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).L2_cache_size)
