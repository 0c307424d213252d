"""The search for the recipe: one thing changed at a time, decided by validation rows.

A table `NAME-ablation` for each dataset. Every variant is spelled out here in full, so that runs stay what they are
when a default of the library moves to what won.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dynamicgate.lab.runner import Table
from experiments.frontier.datasets import DATASETS, OURS, WITHOUT_TEST, at_budget, table_of

BUDGETS = (0.05, 0.1, 0.2)
TRIED_ON = ("digits", "mnist", "cifar10", "tiny-imagenet", "speech", "pbmc3k")
BASE: dict[str, Any] = {
    "model": OURS, "gate_fraction": 0.05, "open_rate": 0.85, "block": 16, "policy": "hard", "scale": False,
    "initial_density": 1.0, "pattern": "unstructured", "distribution": "erk", "widen": 1.0, "distill_weight": 0.0,
    "soft_width": 0.0, "gate_lr_scale": 1.0,
}  # fmt: skip
AS_IT_IS = "as it is"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    AS_IT_IS: ("where the search began", {}),
    "lighter gate": ("it takes 2 % and leaves 95 % open", {"gate_fraction": 0.02, "open_rate": 0.95}),
    "heavier gate": ("it takes 10 % and leaves 70 % open", {"gate_fraction": 0.1, "open_rate": 0.7}),
    "few open": ("many connections to choose from", {"gate_fraction": 0.1, "open_rate": 0.5}),
    "single units": ("finest choice, sparsest gate networks", {"block": 1, "gate_fraction": 0.1}),
    "noise": ("closed gates are tried again", {"policy": "gumbel"}),
    "scaled": ("the gate also scales its units", {"scale": True}),
    "ramp": ("the output is continuous where a gate closes", {"soft_width": 1.1}),
    "longer ramp": ("and gates scale over a wider range", {"soft_width": 2.2}),
    "longest ramp": ("hardly any gate is ever fully open", {"soft_width": 4.4}),
    "ramp, heavier gate": ("more of them", {"soft_width": 1.1, "gate_fraction": 0.1, "open_rate": 0.7}),
    "longer ramp, heavier gate": (
        "and more of them",
        {"soft_width": 2.2, "gate_fraction": 0.1, "open_rate": 0.7},
    ),
    "ramp, lighter gate": (
        "hardly any restriction",
        {"soft_width": 1.1, "gate_fraction": 0.02, "open_rate": 0.95},
    ),
    "ramp, twice as wide": (
        "each unit has fewer inputs and overfits less",
        {"soft_width": 1.1, "widen": 2.0},
    ),
    "ramp, lighter gate, twice as wide": (
        "all three",
        {"soft_width": 1.1, "gate_fraction": 0.02, "open_rate": 0.95, "widen": 2.0},
    ),
    "slow gates": ("a fifth of the learning rate: gates follow what the layers learn", {"gate_lr_scale": 0.2}),
    "ramp, slow gates": ("both", {"soft_width": 1.1, "gate_lr_scale": 0.2}),
    "sparse start": ("RigL as published, never dense", {"initial_density": 0.0}),
    "cells 16x1": ("which kernels on a CPU can use", {"pattern": "16x1"}),
    "uniform": ("the same density in all layers", {"distribution": "uniform"}),
    "twice as wide": ("more units to choose from, each with fewer inputs", {"widen": 2.0}),
    "half as wide again": ("between the two", {"widen": 1.5}),
    "lighter gate, half as wide again": (
        "choose from more units, and close fewer",
        {"gate_fraction": 0.02, "open_rate": 0.95, "widen": 1.5},
    ),
    "lighter gate, twice as wide": ("more of that", {"gate_fraction": 0.02, "open_rate": 0.95, "widen": 2.0}),
    "sparse soon": ("the initial density has fallen after three tenths of training", {"prune_until": 0.3}),
    "sparse sooner": ("after two tenths: hardly time to overfit", {"prune_until": 0.2}),
    "half dense start": ("half of the connections, drawn at random, to choose from", {"initial_density": 0.5}),
    "distilled": (
        "the dense network knows more than the labels, but must be trained first",
        {"distill_weight": 0.5},
    ),
}
CONTROLS: dict[str, dict[str, Any]] = {
    "small": {"model": "small"},
    "pruned": {"model": "pruned"},
    "rigl": {"model": "rigl"},
    "rigl from dense": {"model": "rigl", "initial_density": 1.0, "distribution": "erk"},
    "rigl from dense, twice as wide": {"model": "rigl", "initial_density": 1.0, "distribution": "erk", "widen": 2.0},
    "pruned, twice as wide": {"model": "pruned", "widen": 2.0},
    "pruned by erk": {"model": "pruned", "distribution": "erk"},
}


def tables() -> Iterator[Table]:
    """One table for each dataset."""
    for name in TRIED_ON:
        dataset = DATASETS[name]
        models: dict[str, Any] = {}
        for budget in BUDGETS:
            shared = {**dataset.shared, "epochs": dataset.epochs // 2, "budget": budget, "dropout": 0.1}
            models |= {at_budget(control, budget): {**shared, **asked} for control, asked in CONTROLS.items()}
            models |= {at_budget(what, budget): {**shared, **BASE, **more} for what, (_, more) in VARIANTS.items()}
        yield table_of(
            f"{name}-ablation", dataset, models, changes=(*dataset.changes, WITHOUT_TEST), seeds=(100, 101, 102)
        )
