"""E10: settings are chosen within each split, by validation cells that are neither learned from nor tested.

The cells are few, and test cells of one split are training cells of another: what is chosen on other splits has seen
them. Features of the choice are those of its own training cells as well.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job
from experiments.continual import classes
from experiments.continual.cells import Cells
from experiments.continual.laboratories import Laboratories


def train(job: Job, data: Splits | Laboratories) -> dict[str, Any]:
    """A run with the best of its candidates, or with its settings where it has none."""
    asked = job.settings
    candidates: list[dict[str, Any]] | None = asked.get("candidates")
    if candidates is None:
        return classes.train(job, data)
    inner = within(data)
    scores = [score(classes.train(asking(job, {**own, "inner": True}), inner)) for own in candidates]
    best = candidates[scores.index(max(scores))]
    found = classes.train(asking(job, best), data)
    return {**found, "settings": asked, "chosen": best, "tried": [round(value, 5) for value in scores]}


def within(data: Splits | Laboratories) -> Splits | Laboratories:
    """The cells by which settings are chosen: validation cells stand for test cells, which are left out."""
    if isinstance(data, Laboratories):
        return replace(data, choosing=True)
    if not isinstance(data, Cells) or data.inner is None:
        raise ValueError(f"settings are chosen by validation cells, and {data.name} has none beside its test cells")
    return data.inner


def score(run: dict[str, Any]) -> float:
    """Accuracy over cells and over types count alike: both are reported."""
    return 0.5 * float(run["quality"]["pooled"] + run["quality"]["balanced"])


def asking(job: Job, own: dict[str, Any]) -> Job:
    """The same job with settings of its own in place of candidates; a quick one stays quick."""
    models = {job.model: {**job.table.models[job.model], **own, "candidates": None}}
    return replace(job, table=replace(job.table, models=models))
