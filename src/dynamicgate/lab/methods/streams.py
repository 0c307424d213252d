"""Streams of `dynamicgate continual` and of the experiments: from a dataset and what is asked for to tasks in order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dynamicgate.continual.streams import (
    Parts,
    Stream,
    drifting,
    grouped,
    labels_shuffled,
    permuted,
    rotated,
    some_rows,
    split,
)
from dynamicgate.data.arrays import Arrays
from dynamicgate.lab.datasets.splits import Splits

STREAMS = ("permuted", "rotated", "drifting", "still", "split", "labels", "grouped")
LIMIT = 10.0  # standard deviations: rows of later tasks may lie anywhere
LEAST_STD = 0.1  # of the mean one: a feature that hardly varies in the first task is not blown up in later ones


def scaled(splits: Splits) -> Splits:
    """The same rows, flat, with mean 0 and standard deviation 1 over all features together, where the dataset has one
    mean: that of a feature alone would tell the first task more than a stream knows, and moves with the features."""
    flat = splits.flat()
    if not isinstance(flat.mean, float) or not isinstance(flat.std, float):
        return flat
    mean, std = flat.mean, flat.std
    train, valid, test = (
        replace(part, x=(part.values - mean) / std, prepare=None) for part in (flat.train, flat.valid, flat.test)
    )
    return replace(flat, train=train, valid=valid, test=test, mean=0.0, std=1.0)


def stream_of(data: Parts, asked: dict[str, Any], seed: int) -> Stream:
    """The stream that a run is asked for. Permutations are drawn from the seed; settings were tuned on others."""
    kind, known = asked.get("stream", "permuted"), asked.get("known", "boundaries")
    if kind not in STREAMS:
        raise ValueError(f"unknown stream {kind!r}: expected one of {', '.join(STREAMS)}")
    if kind == "permuted":
        stream = permuted(data, asked["tasks"], seed=seed, known=known)
    elif kind == "rotated":
        stream = rotated(data, asked["tasks"], known=known)
    elif kind == "labels":
        stream = labels_shuffled(data, asked["tasks"], seed=seed, known=known)
    elif kind == "drifting":
        stream = drifting(data, asked["tasks"], seed=seed)
    elif kind == "still":
        stream = permuted(data, 1, seed=seed)
    elif kind == "grouped":
        stream = by_group(data, known)
    else:
        order = class_order(data, seed) if asked.get("shuffled") else None
        stream = split(
            data,
            asked.get("classes", 2),
            scenario=asked.get("scenario", "class"),
            order=order,
            known=asked.get("known"),
        )
    if kind == "grouped" or asked.get("scale") == "first task":
        stream = scaled_by_first(stream)
    rows = asked.get("rows")
    return stream if rows is None else some_rows(stream, min(rows, *(len(t.train) for t in stream)), seed=seed)


def by_group(data: Parts, known: Any) -> Stream:
    """One group of rows after the other, by the column that the dataset was loaded with."""
    groups = data.groups if isinstance(data, Splits) else None
    if groups is None:
        raise ValueError(
            "a grouped stream needs the group of every row: load the dataset with the option group=COLUMN (on the "
            "command line: --by COLUMN)"
        )
    rare = [name for name in dict.fromkeys(groups["train"]) if name not in set(groups["test"])]
    if rare:
        raise ValueError(
            f"the groups {', '.join(map(repr, rare))} have no row to test on: merge small groups, or say with a split "
            "column (--data-option split_column=NAME) which rows are train and test"
        )
    return grouped(data, groups["train"], groups["test"], known=known)


def scaled_by_first(stream: Stream) -> Stream:
    """Every feature with the mean and the standard deviation that it has in the first task: those of later tasks are
    not known when learning begins."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for rows, _ in stream[0].train.batches(4096):
        wide = rows.flatten(1).double()
        count, total, squares = count + len(wide), total + wide.sum(0), squares + wide.square().sum(0)
    mean = total / count
    std = (squares / count - mean.square()).clamp(min=0.0).sqrt()
    least = LEAST_STD * float(std.mean())
    mean, std = mean.float(), (std.clamp(min=least) if least > 0.0 else torch.ones_like(std)).float()

    def scale(part: Arrays) -> Arrays:
        before = part.prepare

        def prepare(rows: Tensor) -> Tensor:
            rows = (rows if before is None else before(rows)).flatten(1).float()
            return ((rows - mean.to(rows)) / std.to(rows)).clamp(-LIMIT, LIMIT)

        return replace(part, prepare=prepare)

    tasks = (replace(task, train=scale(task.train), test=scale(task.test)) for task in stream)
    return replace(stream, tasks=tuple(tasks))


def class_order(data: Parts, seed: int) -> list[int]:
    """The classes in an order of the seed."""
    present = sorted(set(data.train.y.tolist()))
    order = torch.randperm(len(present), generator=torch.Generator().manual_seed(seed))
    return [present[place] for place in order.tolist()]
