"""What this machine reaches, to say what bounds a plan: how fast it reads memory, and how fast it multiplies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import torch
from torch import Tensor

from dynamicgate.inference.language.plan import Machine
from dynamicgate.ops import native

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_CACHE = 32 << 20
SMALLEST, LARGEST = 128 << 20, 1 << 30  # of what is read, in bytes
PIECE, PASSES = 16 << 20, 2
COLUMNS = 1024
SIDES, REPEATS = (512, 1024), 5


def reached() -> Machine:
    """Measured once in a process for each number of threads, in a fraction of a second."""
    return _measured(torch.get_num_threads())


@cache
def _measured(threads: int) -> Machine:
    with torch.inference_mode():
        return Machine(read_speed(), multiply_speed())


def read_speed() -> float:
    """GB/s of reading a buffer that no cache holds, by the faster of a sum and a product with a vector; 0 where there
    is no memory for it. It is read piece by piece, each of a few milliseconds, so that other processes do not interrupt
    all of them."""
    size = min(max(4 * last_level_cache(), SMALLEST), LARGEST)
    try:
        numbers = native.in_large_pages(size // PIECE * (PIECE // 4)).fill_(1.0)
    except (RuntimeError, MemoryError):
        return 0.0
    vector = torch.ones(COLUMNS)
    pieces = numbers.view(-1, PIECE // 4 // COLUMNS, COLUMNS)
    ways: list[Callable[[Tensor], Tensor]] = [torch.sum, lambda rows: rows.mv(vector)]
    seconds = []
    for way in ways:
        way(pieces[-1])
        seconds.append(min([_seconds(partial(way, piece)) for _ in range(PASSES) for piece in pieces]))
    return 1e-9 * PIECE / min(seconds)


def multiply_speed() -> float:
    """GFLOP/s of a product of float32 matrices, of the size that is faster."""
    speeds = []
    for side in SIDES:
        a, b = torch.ones(side, side), torch.ones(side, side)
        torch.mm(a, b)
        speeds.append(2e-9 * side**3 / min([_seconds(partial(torch.mm, a, b)) for _ in range(REPEATS)]))
    return max(speeds)


def last_level_cache() -> int:
    """Bytes of the largest cache; a guess where the system does not say."""
    found = 0
    for path in CACHES.glob("index*/size"):
        with suppress(OSError, ValueError):
            text = path.read_text(encoding="utf-8").strip()
            found = max(found, int(text.rstrip("KMG")) << {"K": 10, "M": 20, "G": 30}.get(text[-1:], 0))
    return found or UNKNOWN_CACHE


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return max(time.perf_counter() - start, 1e-9)
