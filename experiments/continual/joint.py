"""Joint training on permuted images: every batch has rows of all tasks. What E2 is compared with, for as many steps."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from dynamicgate.distributed import choose_device
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job
from experiments.continual.graphs import captured
from experiments.continual.images import Images, images_of
from experiments.continual.stack import Recipe, Stack, cosine


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """One dense network on all tasks at once; then the accuracy on each."""
    asked, device = job.settings, choose_device(job.device)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(job.seed)
    started = time.monotonic()
    images = images_of(splits, asked["tasks"], job.seed, device)
    sizes = (images.train.shape[1], *asked["hidden"], int(images.train_y.max()) + 1)
    stack = Stack.draw(1, sizes, seed=job.seed, device=device)
    steps = asked["tasks"] * asked["epochs"] * (len(images.train_y) // asked["batch"])
    learn(stack, images, asked, steps)
    found = [accuracy(stack, images, task) for task in range(asked["tasks"])]
    acc = sum(found) / len(found)
    macs = float(sum(weight[0].numel() for weight in stack.weights))
    return {
        "model": job.model, "seed": job.seed, "settings": asked, "params": int(stack.nonzero[0]), "bytes": 0,
        "quality": {"accuracy": acc, "acc": acc, "learned": found, "forgetting": 0.0, "contexts": 0,
                    "by_age": found[::-1]},
        "macs": {"executed": macs, "gate": 0.0, "dense": macs, "relative": 1.0, "relative_to_usual": 1.0},
        "steps": steps, "seconds": round(time.monotonic() - started, 1),
    }  # fmt: skip


def learn(stack: Stack, images: Images, asked: dict[str, Any], steps: int) -> None:
    """All steps. Rows are drawn with return: so many of so many rows are hardly ever drawn twice."""
    device, rows, tasks = stack.device, len(images.train_y), len(images.orders)
    rate = torch.zeros((), device=device)
    recipe = Recipe(smoothing=asked.get("smoothing", 0.0))

    def step() -> None:
        index = torch.randint(rows, (asked["batch"],), device=device)
        order = images.orders[torch.randint(tasks, (asked["batch"],), device=device)]
        x: Tensor = images.train[index].gather(1, order)
        grads, _ = stack.gradients(x[None], images.train_y[index][None], recipe)
        stack.adam_(grads, rate, asked.get("decay", 0.0))

    moments = [moment for pair in stack.moments for moment in pair]
    take = captured(step, [*stack.parameters, *moments, *stack.steps])
    for number in range(steps):
        rate.fill_(cosine(asked["lr"], number / steps))
        take()


@torch.no_grad()
def accuracy(stack: Stack, images: Images, task: int) -> float:
    """On the test rows of a task."""
    x = images.test[:, images.orders[task]]
    return float((stack.forward(x[None])[0].argmax(1) == images.test_y).float().mean())
