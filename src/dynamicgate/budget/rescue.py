"""What is done about a collapse when a budget may act on it (sec 4.1)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from dynamicgate.budget.collapse import Collapse, Reading

EASING_PAUSE = 0.02


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
