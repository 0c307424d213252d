"""Section 5.1: MNIST, 784-256-10."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.gating.where import everywhere
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Table, step_settings, train_settings
from experiments.paper.common import OURS, SEEDS_42, WRITTEN, every, step_written, train_written, written
from experiments.paper.published import (
    WHOLE_TRAINING,
    Notebook,
    hard_gates,
    linear_schedule,
    network,
    optimizer_of,
    prune_at_start_,
    readers_only,
    set_gates,
    step_published,
    train_published,
    without_task_gradient_,
)
from experiments.paper.section import Recipe, Section

NOTEBOOK = {"hidden": [256], "epochs": 50, "batch": 128, "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0}
GATE = {
    "gate_lr": 5e-5, "input_logit": 3.0, "hidden_logit": 2.0, "theta": [0.60, 0.90], "theta_epochs": 25,
    "weight": 3e-4, "weight_from": 15, "input_weight": 0.1, "target_rate": 0.90, "target_weight": 2.0,
}  # fmt: skip
INPUT, HIDDEN = "layers.0", "layers.1"


def notebook(asked: dict[str, Any], splits: Splits, device: torch.device) -> Notebook:
    """One of the four models of the published notebook."""
    model = network(asked, splits, device, dropout=asked.get("dropout", 0.0))
    if "prune" in asked:
        prune_at_start_(model.layers[0], asked["prune"])  # type: ignore[arg-type]
        nominal = 1.0 - asked["prune"] * 784 * 256 / (784 * 256 + 256 * 10)
        return Notebook(model, optimizer_of(asked, model), asked["epochs"], claimed=lambda _: nominal)
    if "target_rate" not in asked:
        return Notebook(model, optimizer_of(asked, model), asked["epochs"])
    gated_(model, asked)
    schedule = Schedule(asked)

    def before_epoch(epoch: int) -> None:
        schedule.epoch = epoch
        set_gates(model, theta=schedule.theta(epoch))

    return Notebook(
        model, optimizer_of(asked, model), asked["epochs"], before_epoch, schedule.penalty,
        claimed=lambda _: readers_only(model), after=lambda: {"hard_open": hard_open(model)},
    )  # fmt: skip


def gated_(model: torch.nn.Module, asked: dict[str, Any]) -> None:
    """784 + 256 logits, all equal in a layer, that get no gradient from the task: units are multiplied by p."""
    gate_(model, GateConfig(kind="static", train="soft", evaluate="soft"), everywhere)
    for name, start in ((INPUT, asked["input_logit"]), (HIDDEN, asked["hidden_logit"])):
        torch.nn.init.constant_(named_gates(model)[name].bias, start)
    without_task_gradient_(model)


def hard_open(model: torch.nn.Module) -> dict[str, float]:
    """What would be open if p were compared with theta, which the notebook does only for its count."""
    g = hard_gates(model)
    return {"inputs": float(g[INPUT].mean()), "units": float(g[HIDDEN].mean())}


class Schedule:
    """Threshold and penalty of the published notebook, by epoch."""

    def __init__(self, asked: dict[str, Any]) -> None:
        """At epoch 0."""
        self.asked, self.epoch = asked, 0
        self.theta = linear_schedule(asked["theta"], 0, asked["theta_epochs"])

    def penalty(self, used: Usage) -> Tensor:
        """beta * (mean p of the units + 0.1 * mean p of the inputs), and a hinge that keeps units open."""
        asked, p = self.asked, used.mean_p()
        begin = asked["weight_from"]
        beta = asked["weight"] * max(0, self.epoch - begin) / (50 - begin)
        missing = (asked["target_rate"] - p[HIDDEN]).relu()
        return beta * (p[HIDDEN] + asked["input_weight"] * p[INPUT]) + asked["target_weight"] * missing.square()


PUBLISHED = Recipe(
    kind="published",
    table=Table(
        name="mnist/published",
        data="mnist",
        models={
            "dense": NOTEBOOK,
            "dropout": {**NOTEBOOK, "dropout": 0.5},
            "pruned": {**NOTEBOOK, "prune": 0.3},
            "gate": {**NOTEBOOK, **GATE},
        },
        train=partial(train_published, make=notebook),
        step=partial(step_published, make=notebook),
        seeds=SEEDS_42,
        changes=(WHOLE_TRAINING,),
        quick={"epochs": 2},
    ),
    remarks=(
        "The gates are static: one logit for each input and unit.",
        "Their straight-through estimator is inverted: units are multiplied by p, in testing too, and the task gives "
        "the logits no gradient. All logits of a layer stay equal, so a layer is open or closed as a whole, and what "
        "is counted as closed is computed and used.",
        "`pruned` removes 30 % of the first layer before training, when all weights are still random.",
        "No validation rows; test accuracy after the last epoch. The published code has one seed, 42.",
    ),
)
AS_WRITTEN = Recipe(
    kind="written",
    table=Table(
        name="mnist/written",
        data="mnist",
        models=written(
            ("dense", "gate", "rigl", "gate+rigl"),
            weight=3e-4,
            warmup=0.3,
            density=0.2,
            hidden=[256],
            epochs=50,
            batch=128,
            lr=1e-3,
            weight_decay=0.01,
            dropout=0.0,
        ),
        train=train_written,
        step=step_written,
        quick={"epochs": 2},
    ),
    remarks=WRITTEN,
)
BY_US = Recipe(
    kind="ours",
    table=Table(
        name="mnist/ours",
        data="mnist",
        models=every(budget=0.24, hidden=[256], epochs=30, batch=256, dropout=0.2),
        train=train_settings,
        step=step_settings,
        quick={"epochs": 2},
        quick_rows=4000,
    ),
    remarks=(
        *OURS,
        "Sparse models (pruned, static-sparse, rigl, gate+rigl) have 5/3 of the learning rate, as everywhere in "
        "`dynamicgate compare`.",
    ),
)
SECTION = Section(
    name="mnist",
    number="5.1",
    title="MNIST, 784-256-10",
    training_rows=60_000,
    printed={
        "dense": {"accuracy": 0.9807, "relative": 1.0, "params": 203_530},
        "dropout": {"accuracy": 0.9831, "relative": 1.0, "params": 203_530},
        "pruned": {"accuracy": 0.9802, "relative": 286_105 / 406_528, "params": 203_530},
        "gate": {"accuracy": 0.9807, "relative": 318_263 / 406_528, "params": 204_570},
    },
    recipes=(PUBLISHED, AS_WRITTEN, BY_US),
)
