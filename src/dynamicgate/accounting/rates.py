"""How far gates may be open for a cost."""

from __future__ import annotations

from collections.abc import Callable

from dynamicgate.accounting.counter import MacCounter


def open_rate_at(counter: MacCounter, target: float) -> float:
    """The open rate of all gates at which the model executes `target` of the dense MACs; 1 where that pays for all."""
    if counter.all_open <= target:
        return 1.0
    return largest_rate(counter.relative_at, target)


def largest_rate(relative: Callable[[float], float], target: float) -> float:
    """The largest rate below 1 at which `relative`, which grows with it, is at most `target`."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if relative(middle) <= target else (low, middle)
    return low
