"""What gates do in the training loop of a notebook, and the collapses that it shows.

Nothing is done about them: what is published did not notice them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from dynamicgate.budget import Collapse, Reading, diagnose
from dynamicgate.gating.recording import Usage, named_gates

READINGS = 200  # in all of training


@dataclass
class GateReadings:
    """Probabilities and open rates of all gates over training, and the collapses that they show."""

    collapses: list[Collapse] = field(default_factory=list)
    _readings: dict[str, list[Reading]] = field(default_factory=dict)

    def add(self, model: nn.Module, used: Usage, progress: float) -> None:
        """Read every gate, if it is time to. Routers are left out: they always open k experts."""
        for name, gate in named_gates(model).items():
            readings = self._readings.setdefault(name, [])
            is_early = bool(readings) and progress - readings[-1].progress < 1 / READINGS
            if is_early or name not in used or gate.config.kind == "router":
                continue
            p, g = (float(values.detach().mean()) for values in (used[name].p, used[name].open))
            was_open = bool(readings) and diagnose(name, readings) is None
            readings.append(Reading(progress, p, g, float(gate.theta), float(gate.tau), weight=0.0, target_rate=0.0))
            found = diagnose(name, readings)
            if found and was_open:  # one fall is one report
                self.collapses.append(found)
