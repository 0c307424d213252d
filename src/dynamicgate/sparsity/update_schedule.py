"""When a prune-and-regrow sparsifier updates its masks, and how much it changes each time."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dynamicgate.sparsity.density import Density, cubic_density

FRACTION, FRACTION_FROM_DENSE = 0.3, 0.1
PRUNE_FROM = 0.1


@dataclass(frozen=True, kw_only=True)
class UpdateSchedule:
    """The arguments of SET and RigL that say when masks change; `SET` describes each of them."""

    every: int | None
    until: float
    fraction: float | None
    initial_density: Density | None
    prune_from: float | None
    prune_until: float | None

    def __post_init__(self) -> None:
        if self.fraction is not None and not 0.0 < self.fraction <= 1.0:
            raise ValueError(f"expected 0 < fraction <= 1, a fraction of the connections, received {self.fraction}")
        for name in ("prune_from", "prune_until"):
            if self.initial_density is None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name}={getattr(self, name)} says when the surplus of a denser start is pruned, but this "
                    f"sparsifier starts at its density: pass initial_density as well, or leave {name} out"
                )

    @property
    def pruning(self) -> tuple[float, float]:
        """The fractions of training between which the surplus of a denser start is pruned."""
        prune_from = PRUNE_FROM if self.prune_from is None else self.prune_from
        return prune_from, self.until if self.prune_until is None else self.prune_until

    def check_pruning(self) -> None:
        """Raise an error unless pruning starts before it ends and ends by `until`."""
        start, end = self.pruning
        if not 0.0 <= start < end <= self.until:
            raise ValueError(
                "the surplus of a denser start is pruned between prune_from and prune_until: expected "
                f"0 <= prune_from < prune_until <= until, received {start}, {end} and {self.until}"
            )

    def first_fraction(self, *, starts_denser: bool) -> float:
        """The fraction exchanged at the first update. What was learned dense is worth more than a random draw, so
        that a denser start exchanges less by default."""
        if self.fraction is not None:
            return self.fraction
        return FRACTION_FROM_DENSE if starts_denser else FRACTION

    def fraction_at(self, progress: float, *, starts_denser: bool) -> float:
        """The fraction to exchange at this point of training: a half cosine that reaches zero at `until`."""
        cosine = math.cos(math.pi * min(1.0, progress / self.until))
        return self.first_fraction(starts_denser=starts_denser) * 0.5 * (1.0 + cosine)

    def density_at(self, progress: float, *, initial: float, final: float) -> float:
        """The density that a layer may still have on its way from `initial` to `final`."""
        return cubic_density(initial, final, *self.pruning, progress)
