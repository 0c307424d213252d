"""Section 6.4: does gating reduce forgetting? Five tasks one after the other: MNIST with its pixels permuted.

The paper has no experiment on it. Forgetting is what the accuracy on earlier tasks has fallen by after the last one,
relative to right after each was learned (as the section defines it). `gate` chooses units by the input, `random` has as
many units open, the same for all inputs and tasks, and `small` has no others: what fewer units alone do. One setting
for all, not tuned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import dynamicgate as dg
from dynamicgate.data import Arrays
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import dense_macs, given
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Job, Table
from dynamicgate.lab.runner.training import settings_of
from experiments.continual.matching import (
    called,
    compared,
    corrected,
    in_words,
    overlap_and_forgetting,
    said,
)
from experiments.paper.evidence import Evidence, Verdict, verdict
from experiments.paper.overall import SIGNIFICANT

TASKS = 5
ROWS = 10_000  # for training, of each task
SECTION, GATE, CONTROLS = "forgetting", "gate", ("dense", "random", "small")
SHOWN = (GATE, "gate in blocks")
BUDGET = 0.3
AT_EQUAL = "points forgotten more than by a dense network that has learned as much (docs/continual-results.md),"


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """One model on all tasks in turn; its accuracy on every task after every task."""
    settings = settings_of(job, splits)
    torch.manual_seed(job.seed)
    model, budget, *_ = MODELS[settings.model](settings, splits)
    parts = [permuted(splits, job.seed, task) for task in range(TASKS)]
    reached: list[list[float]] = []
    for task, part in enumerate(parts):
        if isinstance(budget, dg.Budget):
            budget = dg.Budget(target=budget.target)  # begins anew with each task
        dg.fit(
            model, part.train, valid=part.valid, budget=budget, epochs=given(settings.epochs),
            batch=given(settings.batch), lr=given(settings.lr), weight_decay=settings.weight_decay,
            seed=job.seed * TASKS + task, device=job.device, show=False,
        )  # fmt: skip
        model = model.cpu()
        reached.append([dg.measure(model, one.test).quality["accuracy"] for one in parts])
    found = dg.measure(model, parts[-1].test)
    full = dense_macs((splits.train.features, *given(settings.hidden), splits.classes))
    return {
        "model": job.model,
        "seed": job.seed,
        "quality": {"accuracy": fmean(reached[-1])},
        "macs": {"relative": found.macs["executed"] / full},
        "forgotten": fmean(reached[task][task] - reached[-1][task] for task in range(TASKS - 1)),
        "learned": fmean(reached[task][task] for task in range(TASKS)),
        "by_task": reached,
        "gates": [],
        "settings": settings.to_json(),
    }


def permuted(splits: Splits, seed: int, task: int) -> Splits:
    """The data of a task: the first has its pixels in order, each other one in an order of its own."""
    draw = torch.Generator().manual_seed(1000 * seed + task)
    order = torch.randperm(splits.train.features, generator=draw) if task else torch.arange(splits.train.features)
    rows = torch.randperm(len(splits.train), generator=draw)[:ROWS]

    def columns(part: Arrays) -> Arrays:
        x: Tensor = part.rows(torch.arange(len(part)))
        return replace(part, x=x[:, order].contiguous(), prepare=None)

    return replace(
        splits, train=columns(splits.train.take(rows)), valid=columns(splits.valid), test=columns(splits.test)
    )


TABLE = Table(
    name=f"{SECTION}/ours",
    data="mnist",
    models={
        model: {"budget": BUDGET, "hidden": [256], "epochs": 3, "batch": 128, "lr": 1e-3, "dropout": 0.0}
        for model in ("dense", "small", "random", GATE)
    },
    train=train,
    seeds=tuple(range(10)),
    quick={"epochs": 1},
    quick_rows=500,
)


def less_forgetting(e: Evidence) -> Verdict:
    """Whether gates forget less than the dense network and than as many units without a choice. p-values are corrected
    by Holm's rule, those of the controls and those of the streams each for their number."""
    found = [e.paired(SECTION, "ours", GATE, control, "forgotten") for control in CONTROLS]
    p_values = corrected(found)
    holds = all(one.difference < 0.0 and significant(p) for one, p in zip(found, p_values, strict=True))
    texts = [f"{control} {said(one, p)}" for control, one, p in zip(CONTROLS, found, p_values, strict=True)]
    means = {
        m: (e.mean(SECTION, "ours", m, "forgotten"), e.mean(SECTION, "ours", m, "accuracy")) for m in (GATE, *CONTROLS)
    }
    streams = {name: rows for name, rows in e.streams.items() if rows}
    less, more = equally_learned(streams)
    shown = ", ".join(f"{m} {100 * lost:.1f} ({100 * end:.1f} %)" for m, (lost, end) in means.items())
    return verdict(
        holds and less,
        f"ours, {TASKS} tasks of permuted MNIST, points of accuracy forgotten (mean accuracy at the end): {shown}; "
        f"gate − {', '.join(texts)}{more}",
    )


def significant(p: float | None) -> bool:
    """Of a corrected p-value."""
    return p is not None and p < SIGNIFICANT


def equally_learned(streams: Mapping[str, Mapping[str, Sequence[Run]]]) -> tuple[bool, str]:
    """Whether gates forget less than a dense network that has learned as much, in every stream; first in words, then in
    numbers. The page on continual learning has all of them."""
    found = compared(streams)
    if not found:
        return not streams, ""
    words = ", and ".join(text for method in SHOWN if (text := in_words(method, found)))
    numbers = []
    for name, rows in streams.items():
        shown = [f"{m} {said(one.matched.apart, one.p)}" for m in SHOWN if (one := found.get((name, m))) is not None]
        r = overlap_and_forgetting(rows)
        overlap = "" if r is None else f", overlap and forgetting r = {r:.2f}"
        numbers.append(f"{called(name)}: {', '.join(shown)}{overlap}")
    holds = all((name, GATE) in found and found[name, GATE].verdict == "less" for name in streams)
    return holds, f"; {words}; {AT_EQUAL} p corrected for {len(found)} comparisons: {'; '.join(numbers)}"
