"""Means over seeds with their uncertainty, and paired tests: Student's t, without a statistics package."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Interval(NamedTuple):
    """A mean, its standard deviation over runs, and half the width of its 95 % interval (None for one run)."""

    mean: float
    std: float
    half: float | None
    n: int


class Paired(NamedTuple):
    """A mean difference over paired runs, and the two-sided p-value of no difference (None for fewer than two)."""

    difference: float
    p: float | None
    n: int


def interval(values: Sequence[float]) -> Interval:
    """The interval of the mean of `values`."""
    n, mean = len(values), statistics.fmean(values)
    if n < 2:
        return Interval(mean, 0.0, None, n)
    std = statistics.stdev(values)
    return Interval(mean, std, t_quantile(0.975, n - 1) * std / math.sqrt(n), n)


def paired(ours: Sequence[float], theirs: Sequence[float]) -> Paired:
    """The difference `ours` minus `theirs`, run by run."""
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, std, n = *interval(differences)[:2], len(differences)
    if n < 2:
        return Paired(mean, None, n)
    if std == 0.0:
        return Paired(mean, 1.0 if mean == 0.0 else 0.0, n)
    return Paired(mean, 2.0 * (1.0 - t_cdf(abs(mean) / (std / math.sqrt(n)), n - 1)), n)


def welch_half(std_a: float, n_a: int, std_b: float, n_b: int) -> float:
    """Half the width of the 95 % interval of a difference of two means, of two and more runs each, whose spreads may
    differ (Welch). Degrees of freedom are rounded down, which makes it wider."""
    a, b = std_a**2 / n_a, std_b**2 / n_b
    if a + b == 0.0:
        return 0.0
    degrees = (a + b) ** 2 / (a**2 / (n_a - 1) + b**2 / (n_b - 1))
    return t_quantile(0.975, max(1, math.floor(degrees + 1e-9))) * math.sqrt(a + b)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p-values corrected for their number by Holm's step-down rule, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def t_cdf(t: float, degrees: int) -> float:
    """Student's distribution function, by its finite series for whole degrees of freedom (Abramowitz and Stegun 26.7.3
    and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(degrees))
    cosine, sine = math.cos(angle), math.sin(angle)
    odd = degrees % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(1 + odd, degrees, 2):
        total += term
        term *= cosine**2 * k / (k + 1)
    within = 2.0 / math.pi * (angle + sine * total) if odd else sine * total
    return 0.5 + 0.5 * within


def t_quantile(probability: float, degrees: int) -> float:
    """Where `t_cdf` has this value; for probabilities of one half and more."""
    low, high = 0.0, 1.0
    while t_cdf(high, degrees) < probability:
        high *= 2.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if t_cdf(middle, degrees) < probability else (low, middle)
    return high
