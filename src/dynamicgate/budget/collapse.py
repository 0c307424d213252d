"""Gate collapse, recognised early from logged p and g (sec 4.1(1)), named, with its remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

SHOCK_WINDOW = 0.05  # share of training within which changes count as simultaneous
RAPID_WINDOW = 0.10


class Reading(NamedTuple):
    """What was logged of one site at one moment."""

    progress: float
    p: float
    g: float
    theta: float
    tau: float
    weight: float
    keep: float


@dataclass(frozen=True)
class Collapse:
    """A recognised failure: its name, where and when, what was seen and what to do."""

    name: Literal["threshold-too-high", "probability-collapse", "phase-shock"]
    site: str
    progress: float
    evidence: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} at {self.site!r}, {self.progress:.0%} of training: {self.evidence}. Remedy: {self.remedy}"


def diagnose(site: str, readings: Sequence[Reading], *, floor: float = 0.02) -> Collapse | None:
    """The failure mode that the latest readings of one site show, or None while the gates are alive."""
    if len(readings) < 2 or readings[-1].g > floor:
        return None
    now = readings[-1]
    recent = [r for r in readings if r.progress >= now.progress - RAPID_WINDOW]
    if max(r.g for r in recent) <= floor:
        return None  # it did not fall just now: already reported, or never open
    moved = _knobs_moved(recent)
    if len(moved) >= 2:
        return Collapse(
            "phase-shock",
            site,
            now.progress,
            f"open rate fell to {now.g:.3f} while {', '.join(moved)} moved within {SHOCK_WINDOW:.0%} of training",
            "change one knob at a time and blend the phases (schedule.three_phase, a larger `blend`); hold the keep "
            "target near 0.30 at the start of the last phase",
        )
    if now.p >= 0.2:
        return Collapse(
            "threshold-too-high",
            site,
            now.progress,
            f"mean p is {now.p:.2f} but theta is {now.theta:.2f}, so that only {now.g:.3f} open",
            "lower theta below the mean of p, or raise it more slowly",
        )
    return Collapse(
        "probability-collapse",
        site,
        now.progress,
        f"mean p fell from {max(r.p for r in recent):.2f} to {now.p:.2f} at tau {now.tau:.2f}",
        "start the penalty later and anneal it more slowly, raise tau to 1-2, or set always_open",
    )


def _knobs_moved(recent: Sequence[Reading]) -> list[str]:
    """Which of keep, theta and lambda jumped within one window around the fall."""
    moved = []
    for knob in ("keep", "theta", "weight"):
        values = [(r.progress, getattr(r, knob)) for r in recent]
        scale = max(abs(value) for _, value in values) or 1.0
        jump = max(abs(b - a) for t, a in values for u, b in values if 0.0 <= u - t <= SHOCK_WINDOW)
        if jump > 0.15 * scale:
            moved.append({"weight": "lambda"}.get(knob, knob))
    return moved
