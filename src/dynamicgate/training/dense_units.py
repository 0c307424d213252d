"""Fractions of dense MACs, as a run shows and writes them."""

from __future__ import annotations

from typing import NamedTuple

from dynamicgate.budget import Budget, GateBudget


class DenseUnits(NamedTuple):
    """Inside a run everything is relative to the model's own dense MACs; everything shown or written, to those of the
    dense network asked for, which may be narrower or wider. `scale` is the one over the other."""

    scale: float = 1.0

    def asked(self, relative: float | None) -> float | None:
        """A fraction of the model's dense MACs as one of those asked for."""
        return None if relative is None else relative * self.scale

    def of_budget(self, budget: GateBudget | None) -> dict[str, float | None]:
        """What a log row says about a closed loop; None each where there is none."""
        closed = budget if isinstance(budget, Budget) else None
        return {key: self.asked(getattr(closed, key, None)) for key in ("relative", "target", "reference")}

    def scaled(self, found: dict[str, float]) -> dict[str, float]:
        """What a validation found, with its cost as a fraction of the dense MACs asked for."""
        return {**found, "relative": found["relative"] * self.scale}
