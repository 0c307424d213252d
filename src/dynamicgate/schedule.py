"""Schedules: plain functions of training progress, which goes from 0 to 1 (paper, sec 4.1).

A schedule is any ``Callable[[float], float]``. The ones here are `functools.partial` objects of named functions: they
print with their arguments, and can be copied and pickled.

>>> weight = cosine(0.0, 0.5, begin=0.1)
>>> weight(0.05), weight(1.0)
(0.0, 0.5)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

Schedule = Callable[[float], float]


def constant(value: float) -> Schedule:
    """The same value throughout."""
    return partial(_constant, value=value)


def linear(start: float, stop: float, *, begin: float = 0.0, end: float = 1.0) -> Schedule:
    """A straight line from the value `start` at progress `begin` to the value `stop` at progress `end`.

    It is constant before and after. With ``start=0`` this is Algorithm 1 of the paper.
    """
    return partial(_linear, start=start, stop=stop, **_span(begin, end))


def cosine(start: float, stop: float, *, begin: float = 0.0, end: float = 1.0) -> Schedule:
    """Like `linear`, along a half cosine, which has no kink at either end."""
    return partial(_cosine, start=start, stop=stop, **_span(begin, end))


def exponential(start: float, stop: float, *, begin: float = 0.0, end: float = 1.0) -> Schedule:
    """Like `linear`, but changing by a constant factor per unit of progress; both values must be positive."""
    if start <= 0 or stop <= 0:
        raise ValueError(f"an exponential schedule needs positive values, received start={start} and stop={stop}")
    return partial(_exponential, start=start, stop=stop, **_span(begin, end))


def phases(values: Sequence[float], boundaries: Sequence[float], *, blend: float = 0.15) -> Schedule:
    """Constant `values`, with a half cosine from each to the next that starts at a boundary and lasts `blend`.

    `boundaries` and `blend` are fractions of training; a `blend` of 0 makes steps (sec 4.1(3)).
    """
    if len(values) != len(boundaries) + 1:
        raise ValueError(f"{len(boundaries)} boundaries separate {len(boundaries) + 1} values, received {len(values)}")
    if list(boundaries) != sorted(boundaries):
        raise ValueError(f"phase boundaries must be in ascending order, received {list(boundaries)}")
    if blend < 0.0 or (boundaries and (boundaries[0] < 0.0 or boundaries[-1] + blend > 1.0 + 1e-9)):
        raise ValueError(
            f"every transition must lie within [0, 1], or the last value is never reached: received "
            f"boundaries={list(boundaries)} and blend={blend}"
        )
    return partial(_phases, values=tuple(values), boundaries=tuple(boundaries), blend=blend)


class ThreePhase(NamedTuple):
    """Schedules for three arguments of `Budget`, as recommended in sec 4.1(3): target open rate, threshold, weight."""

    target_rate: Schedule
    theta: Schedule
    weight: Schedule


def three_phase(
    *,
    target_rate: tuple[float, float, float] = (0.9, 0.55, 0.3),
    theta: tuple[float, float, float] = (0.55, 0.7, 0.75),
    weight: tuple[float, float, float] = (0.0, 1.0, 1.0),
    boundaries: tuple[float, float] = (0.3, 0.7),
    blend: float = 0.2,
) -> ThreePhase:
    """The paper's three phases, stabilise, reduce and compress, with smooth transitions between them."""
    return ThreePhase(*(phases(values, boundaries, blend=blend) for values in (target_rate, theta, weight)))


def as_schedule(value: float | Schedule) -> Schedule:
    """`value` itself if it is a schedule; a number becomes a constant one."""
    return value if callable(value) else constant(float(value))


def _span(begin: float, end: float) -> dict[str, float]:
    if not 0.0 <= begin < end <= 1.0:
        raise ValueError(f"a schedule needs 0 <= begin < end <= 1, received begin={begin}, end={end}")
    return {"begin": begin, "end": end}


def _fraction(progress: float, begin: float, end: float) -> float:
    """How far `progress` is from `begin` to `end`, from 0 to 1."""
    return min(1.0, max(0.0, (progress - begin) / (end - begin)))


def _constant(_progress: float, *, value: float) -> float:
    return value


def _linear(progress: float, *, start: float, stop: float, begin: float, end: float) -> float:
    return start + (stop - start) * _fraction(progress, begin, end)


def _cosine(progress: float, *, start: float, stop: float, begin: float, end: float) -> float:
    return start + (stop - start) * 0.5 * (1.0 - math.cos(math.pi * _fraction(progress, begin, end)))


def _exponential(progress: float, *, start: float, stop: float, begin: float, end: float) -> float:
    return start * (stop / start) ** _fraction(progress, begin, end)


def _phases(progress: float, *, values: tuple[float, ...], boundaries: tuple[float, ...], blend: float) -> float:
    value = values[0]
    for before, after, boundary in zip(values, values[1:], boundaries, strict=False):
        fraction = float(progress >= boundary) if blend == 0.0 else _fraction(progress, boundary, boundary + blend)
        value += (after - before) * 0.5 * (1.0 - math.cos(math.pi * fraction))
    return value
