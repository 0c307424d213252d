"""Options of a budget that change gates in training, and the models that forbid it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from dynamicgate.distributed import world_size
from dynamicgate.gating.ownership import is_kept
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import stages_of


def check_may_change(model: nn.Module, options: Sequence[str]) -> None:
    """An error for gates that a Keeper relies on, that would differ between processes, or that the budget leaves
    alone. options: those of `fold` and `order_units` that are on."""
    if not options:
        return
    first = options[0]
    if kept := [name for name, gate in named_gates(model).items() if is_kept(gate)]:
        raise ValueError(
            f"{first}=True changes gates, and a Keeper keeps what those at {', '.join(kept)} answer: pass "
            f"{first}=False, or train with it before the first context is kept"
        )
    if world_size() > 1:
        raise ValueError(f"{first}=True changes the model in training, which several processes cannot: leave it out")
    if "order_units" in options and stages_of(model) is not None:
        raise ValueError(
            "order_units=True orders gates that the budget closes, and in a model with stages it moves the cut alone: "
            "leave it out"
        )
