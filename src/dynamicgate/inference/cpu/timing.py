"""Timing calls on the CPU: lower quartiles of wall-clock times, never for longer than asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from dynamicgate.inference.timing import RoundRobin

DOMINATED = 2.0  # this many times slower than the best in the first round: run it only in every RARELY-th round
RARELY = 4
MAX_ROUNDS = 200


def time_calls(
    calls: Mapping[str, Callable[[Tensor], object]], xs: Sequence[Tensor], seconds: float
) -> dict[str, float]:
    """Microseconds of one call of each of `calls`: the lower quartile, because other processes only ever add time.

    Each runs on all of `xs` (at batch 1 many rows: which units are open changes from call to call). A first call of
    each warms up and shows how many rounds fit into `seconds`; its time counts only if hardly any others follow.
    """
    with torch.inference_mode():
        first = {name: _once(call, xs[:1]) for name, call in calls.items()}
        fit = max(1, int(seconds / 2 / max(sum(first.values()), 1e-9)))  # a first round and one that counts
        xs = xs[:: -(-len(xs) // fit)]  # from the whole range: easy rows may be at one end and hard ones at the other
        if len(xs) > 1:
            first = {name: _once(call, xs) for name, call in calls.items()}
        dominated = {name for name, t in first.items() if t > DOMINATED * min(first.values())}
        spent = len(xs) * sum(t / (RARELY if name in dominated else 1) for name, t in first.items())
        rounds = max(1, min(MAX_ROUNDS, int(seconds / max(spent, 1e-9))))
        robin = RoundRobin(calls)
        for number in range(rounds):
            robin.run(lambda name: _once(calls[name], xs), skip=() if number % RARELY == RARELY - 1 else dominated)
        for name, times in robin.times.items():
            if len(times) < 3:
                times.append(first[name])
    return {name: 1e6 * sorted(times)[len(times) // 4] for name, times in robin.times.items()}


def _once(call: Callable[[Tensor], object], xs: Sequence[Tensor]) -> float:
    start = time.perf_counter()
    for x in xs:
        call(x)
    return (time.perf_counter() - start) / len(xs)
