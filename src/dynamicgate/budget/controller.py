"""Closing the loop: hold the executed MACs of the hard gates to a target."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from dynamicgate.schedule import cosine

LAMBDA_LIMIT = 10.0  # wind-up guard: the loss is a cross entropy of order 1
NEARLY = 1.01  # all connections that go have gone, but for rounding
STEER_LIMIT = 0.2  # logits per step


@dataclass
class Controller:
    """Proportional-integral control of lambda towards a reference that falls gently to the target.

    The penalty decides *which* gates close. But an optimizer moves a logit by about its learning rate a step, so that
    in a short run the penalty alone comes too late: the biases of all gates are steered along by `nudge`. (Steering
    alone does not do: with no penalty on the weights of the gate network accuracy falls by several points.)
    """

    lambda_: float = 0.0
    nudge: float = 0.0
    relative: float | None = None
    reference: float | None = None
    start: float | None = None
    memory: float = 0.0
    at: float = -1.0

    def step(
        self, relative: float, progress: float, *, all_open: float, final_relative: float, target: float, warmup: float,
        anneal: float, gain: float, integral: float, steer: float,
    ) -> None:  # fmt: skip
        """Take in what was executed at this moment and set lambda and the nudge for it; once per moment.

        What falls is the share of `all_open` that may be executed: from where the gates began to what the target leaves
        of what is `final_relative`. So gates neither pay for connections that are still to go nor are pushed beyond their end.
        """
        if progress == self.at:
            return  # another piece of the same batch
        if not math.isfinite(relative):
            raise ValueError("the executed MACs are not finite: has the loss become NaN?")
        self.at, self.relative = progress, relative
        if progress < warmup or self.start is None:
            self.start, self.reference = relative / all_open, relative  # gates may be partly closed from the beginning
        if progress < warmup:
            self.lambda_ = self.nudge = 0.0
            return
        if all_open <= NEARLY * final_relative:  # the target is met to the last connection
            final_relative = all_open
        falling = cosine(self.start, target / final_relative, begin=warmup, end=warmup + anneal)
        self.reference = all_open * min(1.0, falling(progress))
        error = relative - self.reference
        self.memory = _clamp(self.memory + integral * error, LAMBDA_LIMIT)
        self.lambda_ = _clamp(gain * error + self.memory, LAMBDA_LIMIT)
        self.nudge = _clamp(steer * error, STEER_LIMIT)

    def state_dict(self) -> dict[str, Any]:
        """All of it."""
        return asdict(self)


def _clamp(value: float, limit: float) -> float:
    return max(-limit, min(limit, value))
