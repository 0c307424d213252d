"""Look before a nudge: how far logits can be moved at once without executing much less or more than is asked for.

Gates that start alike have logits within a thousandth of each other. A nudge of a hundredth then opens or closes them
all and the next one undoes it: the mean over steps is what was asked for, and no single step is near it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage

HALVINGS = 16
THRESHOLDED = ("dynamic", "static")  # kinds of gates that a shift opens or closes


def opened_after(gates: Mapping[str, Gate], used: Usage, nudge_of: Callable[[str], float]) -> dict[str, Tensor]:
    """The decisions of all gates with their logits lowered by `nudge_of(site)`, as far as the logits of this forward
    pass can tell: what other gates let through is not computed again."""
    return {
        site: gate.opened_by(used[site].logits.detach() - nudge_of(site))
        if gate.config.kind in THRESHOLDED
        else used[site].open
        for site, gate in gates.items()
    }


def held_back(nudge: float, error: float, change: Callable[[float], float]) -> float:
    """`nudge`, halved until it does not overshoot, or so little that half of the error is gone all the same.

    error: by how much more is executed than should be. change: how much more is executed after a nudge.
    """
    for _ in range(HALVINGS):
        after = error + change(nudge)
        if after * error >= 0.0 or abs(after) <= abs(error) / 2.0:
            break
        nudge /= 2.0
    return nudge
