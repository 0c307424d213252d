"""E8 and E10: new classes without a stored row. A readout in closed form on fixed features, and what others do."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from dynamicgate.continual import Readout, Retention, Stream, split
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job
from experiments.continual.following import train as train_by_following
from experiments.continual.laboratories import Laboratories


def train(job: Job, data: Splits | Laboratories) -> dict[str, Any]:
    """A readout, the nearest class mean, or a method of `follow`."""
    if job.settings["method"] not in ("readout", "nearest mean", "balanced readout"):
        return train_by_following(job, data)
    asked, started = job.settings, time.monotonic()
    stream = data.stream(job.seed) if isinstance(data, Laboratories) else ordered(data, asked, job.seed)
    features = random_features(stream.features, asked["units"], job.seed) if asked.get("units") else None
    size = asked.get("units") or stream.features
    balanced = asked["method"] == "balanced readout"
    readout = Readout(size, decay=asked.get("decay", 1e-3), balanced=balanced)
    means, retention = dict[int, tuple[Tensor, int]](), Retention.empty(len(stream))
    scale = scale_of(stream) if asked.get("scale") else None
    for number, task in enumerate(stream):
        for x, y in task.train.batches(4096):
            h = changed(x, scale, features)
            if asked["method"] == "nearest mean":
                for c in y.unique().tolist():
                    total, count = means.get(c, (torch.zeros(size), 0))
                    means[c] = (total + h[y == c].sum(0), count + int((y == c).sum()))
            else:
                readout.add(h, y)
        for tested, other in enumerate(stream.tasks[: number + 1]):
            answers = answer(changed(other.test.values, scale, features), readout, means)
            retention.matrix[number, tested] = float((answers == other.test.y).float().mean())
    balanced_accuracy, accuracy = scores(stream, scale, features, readout, means)
    kept = sum(4 * t.numel() for t, _ in means.values()) or readout.bytes
    return {
        "model": job.model, "seed": job.seed, "settings": asked, "macs": {"relative": 1.0},
        "params": size * stream.classes,
        "quality": {"accuracy": accuracy, "balanced": balanced_accuracy, "acc": retention.acc,
                    "learned": retention.learned, "forgetting": retention.forgetting,
                    "retention": retention.to_dict()},
        "told": {"scenario": stream.scenario, "known": stream.known}, "bytes": kept,
        "rows_of_as_many_bytes": kept // (4 * stream.features), "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def ordered(splits: Splits, asked: dict[str, Any], seed: int) -> Stream:
    """Classes in an order of the seed: three seeds are three orders."""
    data = splits.flat()
    present = sorted(set(data.train.y.tolist()))
    order = torch.randperm(len(present), generator=torch.Generator().manual_seed(seed)).tolist()
    return split(data, asked.get("classes", 2), order=[present[i] for i in order])


def scale_of(stream: Stream) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the first task alone: later ones are not known when features are chosen."""
    x = stream.tasks[0].train.values
    return x.mean(0), x.std(0).clamp(min=1e-3)


def random_features(inputs: int, units: int, seed: int) -> tuple[Tensor, Tensor]:
    """Weights that are never trained."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(inputs, units, generator=draw) / inputs**0.5, 0.1 * torch.randn(units, generator=draw)


def changed(x: Tensor, scale: tuple[Tensor, Tensor] | None, features: tuple[Tensor, Tensor] | None) -> Tensor:
    """What the readout reads."""
    x = x.flatten(1).float()
    x = x if scale is None else (x - scale[0]).div(scale[1]).clamp(-5.0, 5.0)
    return x if features is None else (x @ features[0] + features[1]).relu()


def answer(h: Tensor, readout: Readout, means: dict[int, tuple[Tensor, int]]) -> Tensor:
    """The class of each row."""
    if not means:
        return readout.predict(h)
    classes = sorted(means)
    centres = torch.stack([means[c][0] / means[c][1] for c in classes])
    return torch.tensor(classes)[torch.cdist(h, centres).argmin(1)]


def scores(
    stream: Stream, scale: Any, features: Any, readout: Readout, means: dict[int, tuple[Tensor, int]]
) -> tuple[float, float]:
    """Balanced accuracy and accuracy on the test rows of all tasks."""
    right: dict[int, list[int]] = {}
    for task in stream:
        found = answer(changed(task.test.values, scale, features), readout, means) == task.test.y
        for c in task.classes:
            at = task.test.y == c
            before = right.get(c, [0, 0])
            right[c] = [before[0] + int(found[at].sum()), before[1] + int(at.sum())]
    shares = [hit / count for hit, count in right.values() if count]
    return sum(shares) / len(shares), sum(h for h, _ in right.values()) / sum(n for _, n in right.values())
