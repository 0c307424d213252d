"""What training validates on: quality, loss, and the executed MACs they took. `measure` gives the full account."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.accounting.quality import Quality, check_answers
from dynamicgate.accounting.shape_counters import ShapeCounters
from dynamicgate.data.contract import Inputs, call, move
from dynamicgate.data.tasks import Classification, Metric, Task
from dynamicgate.gating.recording import usage
from dynamicgate.modules import evaluating, unwrap


class Batched(Protocol):
    """What comes in batches of inputs and targets."""

    def batches(self, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """All samples, at most `size` at a time where that can be chosen."""


@torch.no_grad()
def evaluate(
    model: nn.Module,
    data: Batched,
    counter: MacCounter,
    *,
    batch: int = 2048,
    task: Task | None = None,
    metrics: Mapping[str, Metric] | None = None,
) -> dict[str, float]:
    """Loss, relative MACs and quality on hard gates. task: what the targets are, None is classification."""
    base, task = unwrap(model), task or Classification()
    device = next(base.parameters()).device
    quality, counters = Quality(task, metrics), ShapeCounters(base, counter)
    loss = relative = weight = 0.0
    rows = 0
    with evaluating(base):
        for x, y in data.batches(batch):
            x, y = move(x, device), y.to(device)
            with usage(base) as used:
                outputs = call(base, x).float()
            y = check_answers(task, outputs, y, "validation data")
            loss += float(task.summed(outputs, y))
            weight += task.weight(y)
            now = counters.counter_for(x).at(used.work)
            relative += float(now.relative(deployed(now.gates, used))) * len(outputs)
            rows += len(outputs)
            quality.add(outputs, y)
    return {"loss": loss / max(weight, 1.0), "relative": relative / rows, **quality.result()}
