"""Schedules: plain functions of training progress in [0, 1] (sec 4.1).

A schedule is any ``Callable[[float], float]``; the ones here are `functools.partial` objects, so they print
with their arguments and survive `copy.deepcopy` and pickling.

>>> ramp = cosine(0.0, 0.5, begin=0.1)
>>> ramp(0.05), ramp(1.0)
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
    """`start` until `begin`, a straight line to `stop` at `end`, `stop` afterwards (Algorithm 1 with `start=0`)."""
    return partial(_linear, start=start, stop=stop, **_span(begin, end))


def cosine(start: float, stop: float, *, begin: float = 0.0, end: float = 1.0) -> Schedule:
    """Like `linear`, with a half cosine: no kink at either end."""
    return partial(_cosine, start=start, stop=stop, **_span(begin, end))


def exponential(start: float, stop: float, *, begin: float = 0.0, end: float = 1.0) -> Schedule:
    """Like `linear`, by a constant factor per unit of progress; both ends must be positive."""
    if start <= 0 or stop <= 0:
        raise ValueError(f"an exponential schedule needs positive ends, received {start} and {stop}")
    return partial(_exponential, start=start, stop=stop, **_span(begin, end))


def phases(values: Sequence[float], boundaries: Sequence[float], *, blend: float = 0.15) -> Schedule:
    """Plateaus joined by half cosines that start at each boundary and last `blend` of training (sec 4.1(3))."""
    if len(values) != len(boundaries) + 1:
        raise ValueError(f"{len(boundaries)} boundaries separate {len(boundaries) + 1} values, received {len(values)}")
    if list(boundaries) != sorted(boundaries):
        raise ValueError(f"phase boundaries must rise, received {list(boundaries)}")
    if blend < 0.0 or (boundaries and (boundaries[0] < 0.0 or boundaries[-1] + blend > 1.0 + 1e-9)):
        raise ValueError(
            f"every transition must lie within [0, 1] or the last value is never reached: received boundaries "
            f"{list(boundaries)} and a blend of {blend}"
        )
    return partial(_phases, values=tuple(values), boundaries=tuple(boundaries), blend=blend)


class ThreePhase(NamedTuple):
    """The three knobs of sec 4.1(3), as schedules that can be handed to `Budget`."""

    keep: Schedule
    theta: Schedule
    weight: Schedule


def three_phase(
    *,
    keep: tuple[float, float, float] = (0.9, 0.55, 0.3),
    theta: tuple[float, float, float] = (0.55, 0.7, 0.75),
    weight: tuple[float, float, float] = (0.0, 1.0, 1.0),
    boundaries: tuple[float, float] = (0.3, 0.7),
    blend: float = 0.2,
) -> ThreePhase:
    """Stabilise, reduce, compress: the paper's three phases, each knob blended so that no boundary is a shock."""
    return ThreePhase(*(phases(values, boundaries, blend=blend) for values in (keep, theta, weight)))


def as_schedule(value: float | Schedule) -> Schedule:
    """A number is the schedule that stays there."""
    return value if callable(value) else constant(float(value))


def _span(begin: float, end: float) -> dict[str, float]:
    if not 0.0 <= begin < end <= 1.0:
        raise ValueError(f"a ramp needs 0 <= begin < end <= 1, received begin={begin}, end={end}")
    return {"begin": begin, "end": end}


def _share(progress: float, begin: float, end: float) -> float:
    return min(1.0, max(0.0, (progress - begin) / (end - begin)))


def _constant(_progress: float, *, value: float) -> float:
    return value


def _linear(progress: float, *, start: float, stop: float, begin: float, end: float) -> float:
    return start + (stop - start) * _share(progress, begin, end)


def _cosine(progress: float, *, start: float, stop: float, begin: float, end: float) -> float:
    return start + (stop - start) * 0.5 * (1.0 - math.cos(math.pi * _share(progress, begin, end)))


def _exponential(progress: float, *, start: float, stop: float, begin: float, end: float) -> float:
    return start * (stop / start) ** _share(progress, begin, end)


def _phases(progress: float, *, values: tuple[float, ...], boundaries: tuple[float, ...], blend: float) -> float:
    value = values[0]
    for before, after, boundary in zip(values, values[1:], boundaries, strict=False):
        share = float(progress >= boundary) if blend == 0.0 else _share(progress, boundary, boundary + blend)
        value += (after - before) * 0.5 * (1.0 - math.cos(math.pi * share))
    return value
