"""Section 5.4: Speech Commands, 1640-512-256-12."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Table, step_settings, train_settings
from experiments.paper.common import OURS, SEEDS_42, WRITTEN, every, step_written, train_written, written
from experiments.paper.published import (
    Notebook,
    logit,
    network,
    optimizer_of,
    readers_only,
    set_gates,
    step_published,
    train_published,
)
from experiments.paper.section import Recipe, Section

NOTEBOOK = {
    "hidden": [512, 256], "epochs": 8, "batch": 256, "optimizer": "adamw", "lr": 1e-3, "weight_decay": 1e-4,
}  # fmt: skip
GATE = {
    "epochs": 10, "open": 0.70, "tau": [2.0, 1.0], "weight": 5e-3, "weight_from": 600 / 3400,
    "phases": [[3, 0.90, 0.55, 0.0], [7, 0.60, 0.70, 1.0], [10, 0.45, 0.74, 1.5]],
}  # fmt: skip


def notebook(asked: dict[str, Any], splits: Splits, device: torch.device) -> Notebook:
    """One of the two models of the published notebook."""
    model = network(asked, splits, device)
    if "phases" not in asked:
        return Notebook(model, optimizer_of(asked, model), asked["epochs"])
    gate_(model, GateConfig(kind="static", train="bernoulli", tau=asked["tau"][0]))
    for gate in named_gates(model).values():
        nn.init.constant_(gate.bias, logit(asked["open"]))
    schedule = Schedule(asked, model, steps=10 * math.ceil(len(splits.train) / asked["batch"]))

    def claimed(_: dict[str, Any]) -> float:
        return readers_only(model)

    return Notebook(
        model, optimizer_of(asked, model), asked["epochs"], schedule.begin, schedule.penalty,
        after_step=schedule.step, claimed=claimed,
    )  # fmt: skip


class Schedule:
    """Three phases of target open rate, threshold and penalty, and a temperature that falls step by step."""

    def __init__(self, asked: dict[str, Any], model: nn.Module, steps: int) -> None:
        """`steps` in the ten epochs of the notebook, 3,400 on the whole data: schedules follow the fraction done."""
        self.asked, self.model, self.steps = asked, model, steps
        self.taken, self.target, self.factor = 0, 1.0, 0.0

    def begin(self, epoch: int) -> None:
        """Enter an epoch, counted from 0."""
        _, self.target, theta, self.factor = next(phase for phase in self.asked["phases"] if epoch < phase[0])
        set_gates(self.model, tau=self._tau(), theta=theta)

    def step(self) -> None:
        """One step further; after the last one tau is 1, as the notebook tests with it."""
        self.taken += 1
        set_gates(self.model, tau=self._tau())

    def penalty(self, used: Usage) -> Tensor:
        """What mean p exceeds its target by."""
        begin, done = self.asked["weight_from"], self.taken / self.steps
        weight = self.asked["weight"] * max(0.0, (done - begin) / (1.0 - begin)) * self.factor
        return weight * torch.stack([(p - self.target).relu() for p in used.mean_p().values()]).sum()

    def _tau(self) -> float:
        start, stop = self.asked["tau"]
        return float(start * (stop / start) ** min(1.0, self.taken / self.steps))


WHOLE_12 = {"unknown_share": None, "silence": "zeros", "silence_share": 0.065}
PUBLISHED = Recipe(
    kind="published",
    table=Table(
        name="speech/published",
        data="speech-commands",
        data_options=WHOLE_12,
        models={"dense": NOTEBOOK, "gate": {**NOTEBOOK, **GATE}},
        train=partial(train_published, make=notebook),
        step=partial(step_published, make=notebook),
        seeds=SEEDS_42,
        revision=2,
    ),
    remarks=(
        "The gates are static: one logit for each unit. In training they are drawn at random, in testing thresholded "
        "at 0.74 (the paper says 0.5), without rescaling.",
        "`dense` trains 8 epochs, `gate` 10, as published.",
        "Features are those of the code (0.8 s, 40 x 41 = 1,640), not of the paper's table. All other words are "
        "`_unknown_`, silence is exact zeros, 6.5 % of the keywords (published: 2,000 clips for 30,769).",
        "The own count lets a closed unit save its reader's work but never its writer's.",
        "The logits start at a probability of 0.70, under the last threshold of 0.74, and rise by about the learning "
        "rate a step: on a subset of the data training is too short for that, and all gates end closed.",
        "The published code has one seed, 42.",
    ),
)
AS_WRITTEN = Recipe(
    kind="written",
    table=Table(
        name="speech/written",
        data="speech-commands",
        data_options={"features": "text"},
        models=written(
            ("dense", "gate"),
            weight=5e-3,
            warmup=0.2,
            hidden=[512, 256],
            epochs=10,
            batch=256,
            lr=1e-3,
            weight_decay=1e-4,
            dropout=0.0,
        ),
        train=train_written,
        step=step_written,
    ),
    remarks=(*WRITTEN, "Features are those of the paper's table (1 s, 40 x 98 = 3,920), the labels the standard 12."),
)
BY_US = Recipe(
    kind="ours",
    table=Table(
        name="speech/ours",
        data="speech-commands",
        models=every(budget=0.39, hidden=[512, 256], epochs=40, batch=64, lr=1e-3, dropout=0.1),
        train=train_settings,
        step=step_settings,
    ),
    remarks=(*OURS, "The standard 12 classes: unknown and silence are a tenth of the keywords each."),
)
SECTION = Section(
    name="speech",
    number="5.4",
    title="Speech Commands, 1640-512-256-12",
    training_rows=84_843,
    printed={
        "dense": {"accuracy": 0.8656, "relative": 1.0},
        "gate": {"accuracy": 0.8654, "relative": 963_287 / 973_824},
    },
    recipes=(PUBLISHED, AS_WRITTEN, BY_US),
)
