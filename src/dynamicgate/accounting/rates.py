"""How far gates may be open for a cost."""

from __future__ import annotations

from dynamicgate.accounting.counter import MacCounter


def open_rate_at(counter: MacCounter, target: float) -> float:
    """The open rate of all gates at which the model executes `target` of the dense MACs; 1 where that pays for all."""
    if counter.all_open <= target:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2.0
        low, high = (middle, high) if counter.relative_at(middle) <= target else (low, middle)
    return low
