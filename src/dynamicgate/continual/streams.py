"""Streams: tasks in order, and what a learner may know of them.

Rows are changed when they are read, so that a hundred permutations of a dataset take the memory of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.data.arrays import Arrays

Scenario = Literal["task", "domain", "class"]
Known = Literal["ids", "boundaries", "nothing"]
Change = Callable[[Tensor], Tensor]
SCENARIOS = {
    "task": "each task has outputs of its own, and which task a row is from is told",
    "domain": "the same labels in every task, and which task a row is from is not told",
    "class": "new classes in every task, and which task a row is from is not told",
}
KNOWN = {
    "ids": "which task a row is from is known in training and in testing",
    "boundaries": "in training it is known when a new task begins, in testing nothing is",
    "nothing": "it is never known when a new task begins",
}


class Parts(Protocol):
    """A dataset in parts; `dynamicgate.lab` has many, and `Task` is one."""

    @property
    def train(self) -> Arrays:
        """To learn from."""

    @property
    def test(self) -> Arrays:
        """To be asked about."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task of a stream. classes: the labels that occur in it."""

    name: str
    train: Arrays
    test: Arrays
    classes: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stream:
    """Tasks in order. scenario: what is asked in testing. known: what is told; both belong to every result.

    classes: how many labels there are in all tasks together.
    """

    name: str
    tasks: tuple[Task, ...]
    scenario: Scenario
    known: Known
    classes: int

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"the stream {self.name!r} has no task: expected one or more")
        if self.scenario not in SCENARIOS:
            raise ValueError(f"unknown scenario {self.scenario!r}: expected one of {', '.join(SCENARIOS)}")
        if self.known not in KNOWN:
            raise ValueError(f"unknown known={self.known!r}: expected one of {', '.join(KNOWN)}")
        if self.scenario == "task" and self.known != "ids":
            raise ValueError("in the scenario 'task' the task of every row is told: expected known='ids'")
        features = {task.train.features for task in self.tasks} | {task.test.features for task in self.tasks}
        if len(features) > 1:
            raise ValueError(
                f"the tasks of {self.name!r} have {', '.join(map(str, sorted(features)))} features: one model reads "
                "them all, so expected the same number in every task"
            )

    def __len__(self) -> int:
        return len(self.tasks)

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __getitem__(self, number: int) -> Task:
        return self.tasks[number]

    @property
    def features(self) -> int:
        """Of a row."""
        return self.tasks[0].train.features

    def info(self) -> dict[str, Any]:
        """What is printed with every result, ready for JSON."""
        return {
            "name": self.name, "tasks": len(self), "scenario": self.scenario, "known": self.known,
            "classes": self.classes, "features": self.features, "rows": [len(task.train) for task in self],
        }  # fmt: skip

    def __repr__(self) -> str:
        rows = sum(len(task.train) for task in self)
        return (
            f"Stream({self.name}: {len(self)} tasks, {rows:,} rows to learn from, {self.classes} classes; "
            f"{SCENARIOS[self.scenario]}; {KNOWN[self.known]})"
        )


def in_order(parts: Sequence[Parts], *, name: str = "own", scenario: Scenario, known: Known = "boundaries") -> Stream:
    """Any datasets, one after the other. Labels mean the same in all of them."""
    named = [(getattr(part, "name", f"task {n + 1}"), part.train, part.test) for n, part in enumerate(parts)]
    return _stream(name, [_task(*one) for one in named], scenario, known)


def permuted(data: Parts, tasks: int, *, seed: int = 0, known: Known = "boundaries") -> Stream:
    """The features in another order in every task, drawn from `seed`. A task does not depend on how many follow."""
    made = []
    for number in range(tasks):
        order = torch.randperm(data.train.features, generator=_generator(seed, number))
        made.append(_changed(f"permutation {number + 1}", data, partial(reorder, order=order)))
    return _stream("permuted", made, "domain", known)


def rotated(data: Parts, tasks: int, *, degrees: float = 180.0, known: Known = "boundaries") -> Stream:
    """Square images, turned by equal steps from 0 up to `degrees`, which is not reached."""
    steps = [degrees * number / tasks for number in range(tasks)]
    made = [_changed(f"{angle:g} degrees", data, partial(turn, degrees=angle)) for angle in steps]
    return _stream("rotated", made, "domain", known)


def drifting(data: Parts, steps: int, *, degrees: float = 180.0, seed: int = 0) -> Stream:
    """The world turns slowly: every step has its own rows, drawn without return, a little further turned than those
    before. There are no boundaries that anybody could be told."""
    if steps > len(data.train):
        raise ValueError(f"{steps} steps need as many rows at least, received {len(data.train)}")
    order = torch.randperm(len(data.train), generator=_generator(seed, 0))
    made = []
    for number, rows in enumerate(order.tensor_split(steps)):
        angle = degrees * number / max(1, steps - 1)
        part = _Both(data.train.take(rows), data.test)
        made.append(_changed(f"{angle:g} degrees", part, partial(turn, degrees=angle)))
    return _stream("drifting", made, "domain", "nothing")


def split(
    data: Parts,
    classes_per_task: int,
    *,
    scenario: Scenario = "class",
    order: Sequence[int] | None = None,
    known: Known | None = None,
) -> Stream:
    """A few classes at a time, in the order of their numbers or in `order`.

    scenario: "class" and "task" keep the labels; in "domain" a label is the place of the class within its task.
    """
    present = sorted(set(data.train.y.tolist()))
    order = present if order is None else list(order)
    if sorted(order) != present:
        raise ValueError(f"order must name every class once: expected {present} in some order, received {order}")
    if not 0 < classes_per_task <= len(order):
        raise ValueError(f"expected 1 to {len(order)} classes a task, received {classes_per_task}")
    if scenario == "domain" and len(order) % classes_per_task:
        raise ValueError(f"{len(order)} classes cannot be divided into tasks of {classes_per_task} with equal labels")
    made = []
    for first in range(0, len(order), classes_per_task):
        chosen = order[first : first + classes_per_task]
        train, test = (_only(part, chosen, renumber=scenario == "domain") for part in (data.train, data.test))
        made.append(_task(" ".join(map(str, chosen)), train, test))
    told: Known = "ids" if scenario == "task" else "boundaries"
    return _stream(f"split by {classes_per_task}", made, scenario, told if known is None else known)


def labels_shuffled(data: Parts, tasks: int, *, seed: int = 0, known: Known = "boundaries") -> Stream:
    """The same rows with their classes renamed in every task: what was learned of the rows stays useful, what was
    learned of the labels is in the way."""
    classes = int(max(data.train.y.max(), data.test.y.max())) + 1
    made = []
    for number in range(tasks):
        names = torch.randperm(classes, generator=_generator(seed, number))
        train, test = (replace(part, y=names.to(part.y.device)[part.y]) for part in (data.train, data.test))
        made.append(_task(f"labels {number + 1}", train, test))
    return _stream("labels shuffled", made, "domain", known)


def grouped(
    data: Parts, train_groups: Sequence[Any], test_groups: Sequence[Any], *, scenario: Scenario = "domain",
    known: Known = "boundaries",
) -> Stream:  # fmt: skip
    """One group of rows after the other, in the order in which they first occur in training: the batches, donors or
    laboratories of a table, by the values of a column."""
    for part, groups in ((data.train, train_groups), (data.test, test_groups)):
        if len(part) != len(groups):
            raise ValueError(f"expected a group for each of {len(part)} rows, received {len(groups)}")
    names = list(dict.fromkeys(train_groups))
    if missing := [name for name in names if name not in set(test_groups)]:
        raise ValueError(f"no row to test on in {', '.join(map(str, missing))}: expected some of every group")
    made = []
    for name in names:
        rows = [torch.tensor([group == name for group in groups]) for groups in (train_groups, test_groups)]
        made.append(_task(str(name), data.train.take(rows[0]), data.test.take(rows[1])))
    return _stream("grouped", made, scenario, known)


def some_rows(stream: Stream, rows: int, *, seed: int = 0) -> Stream:
    """The same stream with `rows` training rows in every task, drawn without return within a task: one short visit."""
    made = []
    if rows < 1:
        raise ValueError(f"a task needs one row or more to learn from, received {rows}")
    for number, task in enumerate(stream):
        if rows > len(task.train):
            raise ValueError(f"task {task.name!r} has {len(task.train)} training rows, fewer than the {rows} asked for")
        chosen = torch.randperm(len(task.train), generator=_generator(seed, number))[:rows]
        made.append(replace(task, train=task.train.take(chosen)))
    return replace(stream, tasks=tuple(made))


def joined(stream: Stream) -> Stream:
    """All tasks at once, as one: what joint training learns from. Rows are changed when they are read, as before."""
    train, test = (
        Arrays(_Joined([getattr(task, part) for task in stream]), torch.cat([getattr(t, part).y for t in stream]))
        for part in ("train", "test")
    )
    return replace(stream, name=f"{stream.name}, joint", tasks=(_task("all", train, test),), scenario="domain",
                   known="boundaries")  # fmt: skip


class _Joined:
    """The rows of several tasks, one after the other."""

    def __init__(self, parts: Sequence[Arrays]) -> None:
        self.parts = parts
        self.starts = torch.tensor([0, *(len(part) for part in parts)]).cumsum(0)
        self.shape = (int(self.starts[-1]), parts[0].features)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Tensor) -> Tensor:
        index = index.cpu()
        part_of = torch.bucketize(index, self.starts[1:], right=True)
        found = torch.empty(len(index), self.shape[1])
        for number in part_of.unique().tolist():
            at = part_of == number
            found[at] = self.parts[number].rows(index[at] - self.starts[number]).flatten(1).float().cpu()
        return found


def reorder(rows: Tensor, order: Tensor) -> Tensor:
    """Rows as vectors with their features in another order."""
    return rows.flatten(1)[:, order.to(rows.device)]


def turn(rows: Tensor, degrees: float) -> Tensor:
    """Square images, flat or not, turned about their middle (bilinear, zeros come in at the corners)."""
    flat = rows.flatten(1)
    side = math.isqrt(flat.shape[1])
    if side * side != flat.shape[1]:
        raise ValueError(f"only square images of one channel can be turned, received rows of {flat.shape[1]} features")
    if degrees % 360.0 == 0.0:
        return rows
    angle = math.radians(degrees)
    matrix = rows.new_tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
    images = flat.view(-1, 1, side, side)
    grid = F.affine_grid(matrix.expand(len(images), 2, 3), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, align_corners=False).view_as(rows)


@dataclass(frozen=True, eq=False)
class _Both:
    train: Arrays
    test: Arrays


def _generator(seed: int, number: int) -> torch.Generator:
    """Its own draw for every task of every seed."""
    return torch.Generator().manual_seed(1_000_003 * seed + number)


def _changed(name: str, data: Parts, change: Change) -> Task:
    return _task(name, *(_with(part, change) for part in (data.train, data.test)))


def _with(part: Arrays, change: Change) -> Arrays:
    """Rows that are changed when they are read, after what their store does to them."""
    before = part.prepare
    return replace(part, prepare=change if before is None else lambda rows: change(before(rows)))


def _only(part: Arrays, classes: Sequence[int], *, renumber: bool) -> Arrays:
    chosen = part.take(torch.isin(part.y, torch.tensor(classes, device=part.y.device)))
    if not renumber:
        return chosen
    places = torch.zeros(max(classes) + 1, dtype=torch.long, device=part.y.device)
    places[torch.tensor(classes)] = torch.arange(len(classes), device=part.y.device)
    return replace(chosen, y=places[chosen.y])


def _task(name: str, train: Arrays, test: Arrays) -> Task:
    if not len(train) or not len(test):
        raise ValueError(f"the task {name!r} has no rows to learn from, or none to test on")
    return Task(name, train, test, tuple(sorted(set(train.y.tolist()))))


def _stream(name: str, tasks: Sequence[Task], scenario: Scenario, known: Known) -> Stream:
    if not tasks:
        raise ValueError("a stream needs one task or more, received none")
    return Stream(name, tuple(tasks), scenario, known, max(task.classes[-1] for task in tasks) + 1)
