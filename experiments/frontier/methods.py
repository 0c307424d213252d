"""The methods: what each is asked for, the one alternative that tuning tries, and the kinds of gates of ours."""

from __future__ import annotations

from typing import Any, NamedTuple

from dynamicgate.presets.sparsify import DISTRIBUTION, spending
from experiments.frontier.datasets import TUNED_AGAIN, Dataset

BUDGETS = (0.05, 0.1, 0.2)
TUNED_AT = 0.1
GATE_AT = (0.1, 0.2)  # where the gate alone stands against a narrow network
DENSE = "dense"
OURS = "ours"
OURS_IN_TILES = "ours 16x1"  # for speed: vector units handle 16 outputs that share an input at once
UNGATED = "rigl from dense"  # the recipe without its gates: what they add or cost
UNGATED_IN_TILES = "rigl from dense 16x1"
PRUNED_IN_TILES = "pruned 16x1"
TILES = "16x1"
CONTROLS = ("small", "pruned", "set", "rigl", "static", "random", "gate", "switch")
TUNED = (DENSE, *CONTROLS, UNGATED, UNGATED_IN_TILES, PRUNED_IN_TILES)
AT_A_BUDGET = (*CONTROLS, UNGATED, OURS, PRUNED_IN_TILES, UNGATED_IN_TILES, OURS_IN_TILES)
WITHOUT_GATES = {OURS: UNGATED, OURS_IN_TILES: UNGATED_IN_TILES}
NO_GATES = "no gates"
ANY_SPEED = ", any speed"  # ours with gates that are slower than none, which the clock refuses
KINDS = (NO_GATES, "units", "two stages", "three stages")
PLANS = {"two stages": "two", "three stages": "three"}
SPARSE = ("pruned", "set", "rigl", UNGATED, UNGATED_IN_TILES, PRUNED_IN_TILES)
CALM = {
    "gate_fraction": 0.05, "always_open": 0.75, "start_static": True, "gate_lr_scale": 1e-3, "fold": True,
    "anneal": 0.25,
}  # fmt: skip
"""Gates that begin with one choice of units for all inputs and move away from it slowly; those that hardly move are
folded into the layer."""
NOISY = {"gate_fraction": 0.25, "policy": "gumbel"}
"""Gates with more inputs of their own, and with noise, so that closed ones are tried again."""
QUICK = {**CALM, "anneal": 0.02}
"""Calm gates that close within a fiftieth of training, so that what stays open learns nearly from the start."""
HEAVY: dict[str, Any] = {"weight_decay": 0.5}
TRIED: dict[str, tuple[dict[str, Any], ...]] = {
    "gate": tuple({**HEAVY, **gates} for gates in (CALM, NOISY, QUICK)),
    "static": ({}, {"policy": "gumbel"}, {**HEAVY, "anneal": CALM["anneal"]}),
}
"""By method the usual setting, and the alternatives."""
TRIED_IN_FIFTH_ROUND = {**TRIED, "gate": (CALM, {**HEAVY, **CALM}, {**HEAVY, **NOISY})}
"""The same on the datasets of the fifth round of protocol.md."""
DECAYS_TRIED: tuple[dict[str, Any], ...] = ({}, HEAVY, {"weight_decay": 0.0})
"""The same for methods that have only dense layers."""


class Choice(NamedTuple):
    """What tuning chooses for a method. other: which alternative, from 1 on; 0 is the usual."""

    lr: float
    dropout: float
    other: int


def tuning_budgets(method: str) -> tuple[float, ...]:
    """The budgets at which tuning tries a method."""
    if method == DENSE:
        return (1.0,)
    return GATE_AT if method in TUNED_AGAIN else (TUNED_AT,)


def alternatives(method: str) -> int:
    """How many alternatives to the usual setting tuning tries with a method."""
    return 2 if method in TUNED_AGAIN else 1


def close_to_best(method: str, dataset: Dataset) -> float:
    """How much less accurate than the best learning rate one at the edge may be to lead the search on."""
    return 0.001 if method == "gate" and dataset.fifth_round else 0.0


def asked(method: str, budget: float, dataset: Dataset, choice: Choice) -> dict[str, Any]:
    """What a method is asked for at a budget."""
    own: dict[str, Any] = {"model": method.split(" ")[0], "budget": budget, "lr": choice.lr}
    if method in (DENSE, "small"):
        own["dense_dropout"] = choice.dropout
    else:
        own["dropout"] = choice.dropout
    if method in SPARSE:
        own |= _layers(budget, dataset, choice)
        if method in WITHOUT_GATES.values():
            own["initial_density"] = 1.0
        if method.endswith(TILES):
            own["pattern"] = TILES
    else:
        tried = TRIED_IN_FIFTH_ROUND if dataset.fifth_round else TRIED
        own |= tried.get(method, DECAYS_TRIED)[choice.other]
    return {**dataset.shared, **own}


def asked_of_ours(method: str, kind: str, budget: float, dataset: Dataset, choice: Choice) -> dict[str, Any]:
    """What ours is asked for with a kind of gates, by what was chosen for the recipe without them."""
    without = asked(WITHOUT_GATES[method], budget, dataset, choice)
    if kind == NO_GATES:
        return without
    if kind == "units":
        return {**without, "model": "gate+rigl"}
    own = {key: value for key, value in without.items() if key not in ("initial_density", "distribution", "widen")}
    return {**own, "model": "staged", "stages": PLANS[kind], **({"widen": 1.0} if choice.other else {})}


def _layers(budget: float, dataset: Dataset, choice: Choice) -> dict[str, Any]:
    """Sparse layers as in the recipe, or uniform ones that are as wide as asked for."""
    usual = {"distribution": DISTRIBUTION, "widen": spending(budget).widen}
    return {"every": dataset.every, **({"distribution": "uniform", "widen": 1.0} if choice.other else usual)}
