"""Accuracy over a long stream, in its second tenth and in its last: the first tenth still learns to learn."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

TENTH = 10


def early(curve: Sequence[float]) -> Sequence[float]:
    """The second tenth."""
    tenth = max(1, len(curve) // TENTH)
    return curve[tenth : 2 * tenth] or curve


def late(curve: Sequence[float]) -> Sequence[float]:
    """The last tenth."""
    return curve[-max(1, len(curve) // TENTH) :]


def late_mean(curves: Sequence[Sequence[float]]) -> float:
    """Accuracy in the last tenth, over seeds."""
    return fmean(fmean(late(curve)) for curve in curves)
