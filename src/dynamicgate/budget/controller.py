"""Closing the loop: hold the executed MACs of the hard gates to a target."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from dynamicgate.budget.nudging import held_back
from dynamicgate.schedule import cosine

LAMBDA_LIMIT = 10.0  # wind-up guard: the loss is a cross entropy of order 1
NEARLY = 1.01
STEER_LIMIT = 0.2  # logits per step
OVERSHOT = 0.02  # of the dense MACs, from one side of the reference to the other in one step


@dataclass
class Controller:
    """Proportional-integral control of lambda towards a reference that falls gently to the target.

    The penalty decides *which* gates close. But an optimizer moves a logit by about its learning rate a step, so in a
    short run the penalty alone comes too late: `nudge` moves the biases of all gates as well. (Steering alone is not
    enough: without a penalty on the weights of the gate network accuracy falls by several points.)
    """

    lambda_: float = 0.0
    nudge: float = 0.0
    relative: float | None = None
    reference: float | None = None
    start: float | None = None
    memory: float = 0.0
    error: float = 0.0
    overshot: bool = False
    """Whether a step ever went from one side of the reference to the other: logits lie so close together that a nudge
    moves many of them, and the budget then looks before it nudges (`dynamicgate.budget.nudging`)."""

    def step(
        self, relative: float, progress: float, *, all_open: float, final_all_open: float, target: float, warmup: float,
        anneal: float, gain: float, integral: float, steer: float,
    ) -> None:  # fmt: skip
        """Take in what was executed and set lambda and the nudge; once per optimizer step.

        The reference is a falling fraction of `all_open`: from where the gates began to what the target leaves of
        `final_all_open`, which is `all_open` once the sparsifier has pruned everything it will. So gates do not pay
        for connections that are still to be pruned, and are not pushed below the target either.
        """
        if not math.isfinite(relative):
            raise ValueError("the executed MACs are not finite: has the loss become NaN?")
        self.relative = relative
        if progress < warmup or self.start is None:
            self.start, self.reference = relative / all_open, relative  # gates may be partly closed from the beginning
        if progress < warmup:
            self.lambda_ = self.nudge = 0.0
            return
        if all_open <= NEARLY * final_all_open:  # pruning is done but for rounding
            final_all_open = all_open
        falling = cosine(self.start, target / final_all_open, begin=warmup, end=warmup + anneal)
        self.reference = all_open * min(1.0, falling(progress))
        error = relative - self.reference
        self.overshot |= error * self.error < 0.0 and abs(error - self.error) > OVERSHOT
        self.error = error
        self.memory = _clamp(self.memory + integral * error, LAMBDA_LIMIT)
        self.lambda_ = _clamp(gain * error + self.memory, LAMBDA_LIMIT)
        self.nudge = _clamp(steer * error, STEER_LIMIT)

    def look_ahead(self, executed_after: Callable[[float], float], steer: float, *, late: bool = False) -> None:
        """After an overshoot: nudge by what the last forward pass calls for, and no further than it allows.

        executed_after: what that pass would have executed after a nudge. late: `relative` is of the step before.
        """
        assert self.reference is not None
        assert self.relative is not None
        now = executed_after(0.0) if late else self.relative
        error = now - self.reference
        self.nudge = held_back(_clamp(steer * error, STEER_LIMIT), error, lambda nudge: executed_after(nudge) - now)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def _clamp(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
