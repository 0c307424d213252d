"""Gate collapse: recognised early from logged p and g (sec 4.1(1)), named, and remedied if the budget may act."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

SHOCK_WINDOW = 0.05  # fraction of training within which changes count as simultaneous
RAPID_WINDOW = 0.10
EASING_PAUSE = 0.02


class Reading(NamedTuple):
    """What was logged of one site at one moment."""

    progress: float
    p: float
    g: float
    theta: float
    tau: float
    weight: float
    target_rate: float


@dataclass(frozen=True)
class Collapse:
    """A recognised failure: its name, where and when it happened, the evidence and what to do."""

    name: Literal["threshold-too-high", "probability-collapse", "phase-shock", "closed-to-new-rows"]
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
    moved = _settings_moved(recent)
    if len(moved) >= 2:
        return Collapse(
            "phase-shock",
            site,
            now.progress,
            f"open rate fell to {now.g:.3f} while {', '.join(moved)} moved within {SHOCK_WINDOW:.0%} of training",
            "change one setting at a time and blend the phases (schedule.three_phase, a larger `blend`); hold the "
            "target rate near 0.30 at the start of the last phase",
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


def _settings_moved(recent: Sequence[Reading]) -> list[str]:
    """Which of target rate, theta and lambda jumped within one window around the fall."""
    moved = []
    for setting in ("target_rate", "theta", "weight"):
        values = [(r.progress, getattr(r, setting)) for r in recent]
        scale = max(abs(value) for _, value in values) or 1.0
        jump = max(abs(b - a) for t, a in values for u, b in values if 0.0 <= u - t <= SHOCK_WINDOW)
        if jump > 0.15 * scale:
            moved.append({"weight": "lambda", "target_rate": "target rate"}.get(setting, setting))
    return moved


@dataclass
class Rescue:
    """The remedies in force: lower thresholds, an eased penalty, schedules that wait."""

    theta_caps: dict[str, float] = field(default_factory=dict)
    relief: float = 1.0
    eased: dict[str, float] = field(default_factory=dict)
    hold: tuple[float, float] | None = None

    def act(self, collapse: Collapse, now: Reading, *, known: bool) -> None:
        """Apply the remedy of one collapse; `known` says that it was already acted on and is not over."""
        if collapse.name == "phase-shock" and (known or self.hold is None):
            if not known:
                at = max(0.0, self.schedule_time(collapse.progress) - 0.1)
                self.hold = (at, min(1.0, collapse.progress + 0.1))
        elif now.p >= 0.2:  # waiting did not help, or it was the threshold from the start
            self.theta_caps[collapse.site] = 0.9 * now.p
        elif now.progress - self.eased.get(collapse.site, -1.0) >= EASING_PAUSE:
            # Again while it stays shut, but not before the last easing could have had an effect.
            self.relief *= 0.5
            self.eased[collapse.site] = now.progress

    def schedule_time(self, progress: float) -> float:
        """Progress as the schedules see it: after a shock they go back, wait, and then catch up by the end."""
        if self.hold is None:
            return progress
        at, until = self.hold
        return at if progress <= until else at + (progress - until) * (1.0 - at) / max(1e-9, 1.0 - until)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> Rescue:
        """What `state_dict` described."""
        return cls(**{**state, "hold": tuple(state["hold"]) if state["hold"] else None})
