"""What a stream is compared with: a fresh copy of the model on each task alone, and one on all tasks so far together.

Both are trained before the stream, from the model as it is then, so that nothing has to be remembered for them.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from dynamicgate.continual.learners import Learner
from dynamicgate.continual.optimizers import NewOptimizer
from dynamicgate.continual.retention import NAN
from dynamicgate.continual.streams import Known, Stream, joined
from dynamicgate.continual.walk import Walk
from dynamicgate.continual.walk_file import Parts
from dynamicgate.training.progress import Progress

Kind = Literal["fresh", "joint"]
FOLDER = "references"


def measure_references(walk: Walk, make: Callable[[nn.Module], NewOptimizer], progress: Progress) -> None:
    """Fill `fresh` and `joint` of the retention of a walk that has not begun. What is learned along the stream does not
    depend on it: copies are trained, with random numbers of their own. make: gives what makes the optimizer of a model,
    as that of the walk."""
    retention, tasks = walk.retention, len(walk.stream)
    if retention.joint is None:
        retention.joint = torch.full((tasks,), NAN, dtype=torch.float64)
        if walk.out is not None:
            walk.save()  # the initial model, from which later references begin, after a kill too
    work = [(kind, number) for number in range(tasks) for kind in _missing(walk, number)]
    lengths = [number + 1 if kind == "joint" else 1 for kind, number in work]
    for at, (kind, number) in enumerate(work):
        span = (sum(lengths[:at]) / sum(lengths), sum(lengths[: at + 1]) / sum(lengths))
        found = _train(walk, kind, number, make, _Within(progress, *span))
        if kind == "fresh":
            retention.fresh.append(found)
        else:
            retention.joint[number] = found
        if walk.out is not None:
            walk.save()
            shutil.rmtree(walk.out / FOLDER / f"{kind}-{number}")


def _missing(walk: Walk, number: int) -> Iterator[Kind]:
    assert walk.retention.joint is not None
    if len(walk.retention.fresh) <= number:
        yield "fresh"
    if bool(walk.retention.joint[number].isnan()):
        yield "joint"


def _train(walk: Walk, kind: Kind, number: int, make: Callable[[nn.Module], NewOptimizer], progress: Progress) -> float:
    """Online accuracy of a fresh network on a task, or accuracy on it after joint training up to it."""
    given, asked = walk.parts, walk.options
    model, sparsifier, recycler, budget = copy.deepcopy(
        (given.model, given.sparsifier, given.recycler, given.budget)
    )  # together: they know each other
    parts = Parts(model, Learner(model), sparsifier=sparsifier, recycler=recycler, budget=budget)
    options: dict[str, Any] = {**asked, "online": kind == "fresh", "test_every": None, "test_later": False}
    if asked["clock"] != "constant":
        options["horizon"] = None  # everything is known of a single task
    out = None if walk.out is None else walk.out / FOLDER / f"{kind}-{number}"
    with torch.random.fork_rng(devices=[walk.device] if walk.device.type == "cuda" else []):
        torch.manual_seed(asked["seed"])
        stream = _one_task(walk.stream, kind, number)
        reference = Walk(parts, stream, options, make(model), walk.device, out, walk.checkpoint_seconds)
        reference.interrupts = walk.interrupts
        reference.resume()
        reference.go(progress)
    return reference.retention.online[0] if kind == "fresh" else float(reference.retention.matrix[0, 0])


def _one_task(stream: Stream, kind: Kind, number: int) -> Stream:
    """A stream of one task, which is asked about as it would be in the whole stream."""
    task = stream.tasks[number]
    if kind == "joint":
        together = joined(replace(stream, tasks=stream.tasks[: number + 1])).tasks[0]
        task = replace(task, train=together.train)
    known: Known = "ids" if stream.scenario == "task" else "boundaries"
    return replace(stream, name=f"{stream.name}, {kind} {number + 1}", tasks=(task,), known=known)


class _Within(Progress):
    """A part of a longer progress."""

    def __init__(self, whole: Progress, begin: float, end: float) -> None:
        super().__init__(whole.label, show=False)
        self.whole, self.begin, self.end = whole, begin, end

    def update(self, fraction: float, text: str) -> None:
        """Show that this fraction of the part is done."""
        self.whole.update(self.begin + (self.end - self.begin) * fraction, "")
