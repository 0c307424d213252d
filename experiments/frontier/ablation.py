"""The search for the recipe: one thing changed at a time, judged by validation rows.

A table `NAME-ablation` for each data set. What won is a default of the library and stands here as "as it is".
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynamicgate.paper import Table

from .sets import OURS, SETS, at_a_budget, table, tuning_change

BUDGETS = (0.05, 0.2)
AS_IT_IS = "as it is"
RIVALS = ("small", "pruned", "rigl")
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    AS_IT_IS: ("the defaults", {}),
    "light gate": (
        "a gate that takes 5 % of the budget and closes little costs little",
        {"gate_share": 0.05, "open_rate": 0.85},
    ),
    "half as light": ("the same, halfway", {"gate_share": 0.1, "open_rate": 0.75}),
    "few open": ("more connections to choose from", {"open_rate": 0.4}),
    "blocks of 4": ("finer choice, dearer gate", {"block": 4}),
    "single units": ("finest choice, thinnest gate", {"block": 1}),
    "noise": ("closed gates are tried again", {"policy": "gumbel"}),
    "scaled": ("the gate also says how much", {"scale": True}),
    "sparse start": ("RigL as published, never dense", {"start": 0.001}),
    "cells 16x1": ("what kernels on a CPU like", {"structure": "16x1"}),
    "distilled": ("the dense network knows more than the labels say; it must be trained too", {"distill": 0.5}),
    "hot": ("softer gradients of the gate", {"tau": 2.0}),
}


def tables() -> Iterator[Table]:
    """One table for each data set."""
    for position, (name, one) in enumerate(SETS.items()):
        models: dict[str, Any] = {}
        for budget in BUDGETS:
            shared = {**one.shared, "budget": budget, "dropout": 0.1}
            models |= {at_a_budget(rival, budget): {**shared, "model": rival} for rival in RIVALS}
            models |= {
                at_a_budget(what, budget): {**shared, "model": OURS, **more} for what, (_, more) in VARIANTS.items()
            }
        yield table(
            f"{name}-ablation", one, models, f"{position} ablation", change=tuning_change(one), seeds=(100, 101, 102)
        )


TABLES = tuple(tables())
