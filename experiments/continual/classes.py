"""E8 and E10: new classes without a stored row. A readout in closed form on fixed features, and what others do.

Features are fixed before the second task: drawn at random, over the whole image, in windows of it or as filters that
are moved over it, or learned in the first task. Features that are kept from every task cannot be read out in this way:
what a new unit says of rows that are gone is in no sum.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.continual import Readout, Retention, Stream, reading_out
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.stream_runs import accuracies, beside_dense
from dynamicgate.lab.methods.streams import scaled, stream_of
from dynamicgate.lab.runner import Job
from experiments.continual.following import train as train_by_following
from experiments.continual.laboratories import Laboratories
from experiments.continual.stack import Stack, cosine

GRID = 4
READOUTS = ("readout", "balanced readout", "nearest mean")
Features = Callable[[Tensor], Tensor]
Means = dict[int, tuple[Tensor, int]]


def train(job: Job, data: Splits | Laboratories) -> dict[str, Any]:
    """A readout, the nearest class mean, or a method of `follow`."""
    if job.settings["method"] not in READOUTS:
        return train_by_following(job, data)
    asked, started = job.settings, time.monotonic()
    stream = data.stream(job.seed) if isinstance(data, Laboratories) else stream_of(scaled(data), asked, job.seed)
    features, size, products = features_of(stream, asked, job.seed)
    readout = Readout(size, decay=asked.get("decay", 1e-3), balanced=asked["method"] == "balanced readout")
    means, retention = Means(), Retention.empty(len(stream))
    for number, task in enumerate(stream):
        for x, y in task.train.batches(4096):
            h = features(x)
            if asked["method"] == "nearest mean":
                for c in y.unique().tolist():
                    total, count = means.get(c, (torch.zeros(size), 0))
                    means[c] = (total + h[y == c].sum(0), count + int((y == c).sum()))
            else:
                readout.add(h, y)
        if asked.get("inner") and number + 1 < len(stream):
            continue  # only the end decides
        answer = answers_of(readout, means)
        for tested, other in enumerate(stream.tasks[: number + 1]):
            found = torch.cat([answer(features(x)) for x, _ in other.test.batches(4096)])
            retention.matrix[number, tested] = float((found == other.test.y).float().mean())
    kept = sum(4 * t.numel() for t, _ in means.values()) or readout.bytes
    return {
        "model": job.model, "seed": job.seed, "settings": asked,
        "macs": beside_dense({"executed": float(products + size * stream.classes), "gate": 0.0},
                             (stream.features, *asked["hidden"], stream.classes)),
        "params": size * stream.classes,
        "quality": {"accuracy": retention.acc, "acc": retention.acc, "learned": retention.learned,
                    "forgetting": retention.forgetting, "retention": retention.to_dict(),
                    **accuracies(lambda x, _: answer(features(x)), stream)},
        "told": {"scenario": stream.scenario, "known": stream.known, "tasks": [task.name for task in stream]},
        "bytes": kept, "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def features_of(stream: Stream, asked: dict[str, Any], seed: int) -> tuple[Features, int, int]:
    """What the readout reads, how many numbers that is, and the MACs that they take."""
    if not asked.get("units"):
        return lambda x: x.flatten(1).float(), stream.features, 0
    if asked.get("filters"):
        return random_filters(stream.features, asked["units"], seed, asked["filters"])
    weight, bias = random_features(stream.features, asked["units"], seed, asked.get("window"))
    if asked.get("features") == "learned":
        weight, bias = learned_features(stream, weight, bias, seed)
    read = int((weight != 0).sum())  # of a window, only the pixels in it
    return lambda x: (x.flatten(1).float() @ weight + bias).relu(), asked["units"], read


def random_features(inputs: int, units: int, seed: int, window: int | None = None) -> tuple[Tensor, Tensor]:
    """Weights that are never trained. window: every unit sees a square of so many pixels a side, somewhere."""
    if window is None:
        return reading_out.random_features(inputs, units, seed)
    draw = torch.Generator().manual_seed(seed)
    weight = torch.randn(inputs, units, generator=draw)
    bias = 0.1 * torch.randn(units, generator=draw)
    side = round(inputs**0.5)
    if side * side != inputs or not 0 < window <= side:
        raise ValueError(f"a window of {window} needs square images of one channel, received {inputs} features")
    top, left = (torch.randint(side - window + 1, (units,), generator=draw) for _ in range(2))
    place = torch.arange(side)[:, None]
    rows, columns = ((place >= first) & (place < first + window) for first in (top, left))
    seen = (rows[:, None] & columns[None, :]).view(inputs, units)
    return weight * seen / window, bias


def random_filters(inputs: int, units: int, seed: int, size: int) -> tuple[Features, int, int]:
    """Filters that are never trained, of `size` pixels a side: their mean answer in each part of a grid. At most
    `units` numbers; a filter costs its pixels at every place."""
    side = round(inputs**0.5)
    if side * side != inputs or not 0 < size <= side:
        raise ValueError(f"filters of {size} need square images of one channel, received {inputs} features")
    draw = torch.Generator().manual_seed(seed)
    count = max(1, units // GRID**2)
    weight = F.normalize(torch.randn(count, size * size, generator=draw)).view(count, 1, size, size)
    bias = -torch.rand(count, generator=draw)

    def answers(x: Tensor) -> Tensor:
        found = [  # few rows at a time: a filter has an answer for every place
            F.adaptive_avg_pool2d(F.conv2d(rows, weight, bias).relu(), GRID).flatten(1)
            for rows in x.reshape(-1, 1, side, side).float().split(1000)
        ]
        return torch.cat(found)

    return answers, count * GRID**2, count * size**2 * (side - size + 1) ** 2


def learned_features(stream: Stream, weight_DU: Tensor, bias_U: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Hidden units of a network that starts with these and learns the first task; fixed from then on."""
    rows = stream.tasks[0].train
    x, y = rows.values.flatten(1).float(), rows.y
    stack = Stack.draw(1, (stream.features, len(bias_U), stream.classes), seed=seed, device=torch.device("cpu"))
    stack.weights[0].copy_(weight_DU)
    stack.biases[0].copy_(bias_U)
    draw, size = torch.Generator().manual_seed(seed), 128
    order = torch.cat([torch.randperm(len(y), generator=draw) for _ in range(2)]).split(size)
    for step, index in enumerate(order):
        grads, _ = stack.gradients(x[index][None], y[index][None])
        stack.adam_(grads, cosine(1e-3, step / len(order)))
    return stack.weights[0][0], stack.biases[0][0]


def answers_of(readout: Readout, means: Means) -> Features:
    """From features to the class of each row; solved once."""
    if not means:
        weight, bias = readout.solve()
        unseen = readout.counts_C == 0
        return lambda h: (h @ weight.T + bias).masked_fill(unseen, -torch.inf).argmax(1)
    classes = torch.tensor(sorted(means))
    centres = torch.stack([means[c][0] / means[c][1] for c in classes.tolist()])
    return lambda h: classes[torch.cdist(h, centres).argmin(1)]
