"""Section 5.3: Tiny-ImageNet, 12288-256-classes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import Usage, named_gates
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Table, step_settings, train_settings
from dynamicgate.masks import connections, put_mask_
from experiments.paper.common import OURS, SEEDS_42, WRITTEN, every, step_written, train_written, written
from experiments.paper.published import (
    IN_MEMORY,
    WHOLE_TRAINING,
    Notebook,
    gate_before_relu_,
    network,
    open_at_least_,
    optimizer_of,
    prune_at_start_,
    step_published,
    train_published,
)
from experiments.paper.section import Recipe, Section

NOTEBOOK = {"hidden": [256], "epochs": 20, "batch": 128, "optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0}
GATE = {
    "theta": 0.6, "min_open": 0.20, "target": 0.50, "weight": 1e-3, "weight_from": 3, "growth": 1.5, "max_weight": 0.1,
}  # fmt: skip
RIGL = {"sparsity": 0.8, "every": 200, "fraction": 0.01, "momentum": 0.9, "init": 0.02}


def notebook(asked: dict[str, Any], splits: Splits, device: torch.device) -> Notebook:
    """One of the four models of the published notebook."""
    model = network(asked, splits, device, dropout=asked.get("dropout", 0.0))
    first, last = model.layers
    assert isinstance(first, nn.Linear)
    assert isinstance(last, nn.Linear)
    total = first.weight.numel() + last.weight.numel()
    if "prune" in asked:
        prune_at_start_(first, asked["prune"])
        kept = 1.0 - asked["prune"] * first.weight.numel() / total
        return Notebook(model, optimizer_of(asked, model), asked["epochs"], claimed=lambda _: kept)
    if "theta" not in asked:
        return Notebook(model, optimizer_of(asked, model), asked["epochs"])
    gate_(model, GateConfig(kind="static", train="hard", theta=asked["theta"], open=0.5))
    open_at_least_(model, asked["min_open"])
    gate_before_relu_(model)
    (gate,) = named_gates(model).values()
    updates, weight = MaskUpdates(first, asked), [0.0]

    def before_epoch(epoch: int) -> None:
        late = epoch - asked["weight_from"]
        weight[0] = 0.0 if late < 0 else min(asked["max_weight"], asked["weight"] * asked["growth"] ** late)

    def penalty(used: Usage) -> Tensor:
        (p,) = used.mean_p().values()
        return weight[0] * (p - asked["target"]).square()

    def claimed(_: dict[str, Any]) -> float:
        soft = float(torch.sigmoid(gate.bias.detach()).mean())
        return ((1.0 - asked["sparsity"]) * first.weight.numel() + soft * last.weight.numel()) / total

    return Notebook(
        model, optimizer_of(asked, model), asked["epochs"], before_epoch, penalty, updates.watch, updates.step,
        claimed=claimed, after=lambda: {"mask_updates": updates.count},
    )  # fmt: skip


class MaskUpdates:
    """The published mask updates of the first layer: the largest weights at first, then a constant number of
    connections pruned and regrown by a running mean of the gradient. Just pruned ones may be regrown, grown weights
    are drawn at random, and the optimizer keeps its state."""

    def __init__(self, layer: nn.Linear, asked: dict[str, Any]) -> None:
        """Keep the largest weights of an untrained layer."""
        prune_at_start_(layer, asked["sparsity"])
        self.layer, self.asked = layer, asked
        self.wanted = torch.zeros_like(layer.weight)
        self.steps = self.count = 0

    def watch(self) -> None:
        """Add the signed gradient to its running mean."""
        assert self.layer.weight.grad is not None
        self.wanted.lerp_(self.layer.weight.grad, 1.0 - self.asked["momentum"])

    @torch.no_grad()
    def step(self) -> None:
        """Every 200 steps prune and regrow as many connections as 1 % of all weights."""
        self.steps += 1
        if self.steps % self.asked["every"]:
            return
        weight, mask = self.layer.weight, connections(self.layer)
        assert mask is not None
        number = int(self.asked["fraction"] * weight.numel())
        size = weight.abs().masked_fill(~mask, torch.inf).flatten()
        mask = mask.flatten().index_fill(0, size.topk(number, largest=False).indices, False)
        grown = self.wanted.abs().flatten().masked_fill(mask, -1.0).topk(number).indices
        mask = mask.index_fill(0, grown, True).view(weight.shape)
        weight.view(-1)[grown] = torch.randn(number, device=weight.device) * self.asked["init"]
        put_mask_(self.layer, mask)
        self.count += 1


PUBLISHED = Recipe(
    kind="published",
    table=Table(
        name="tiny-imagenet/published",
        data="tiny-imagenet",
        models={
            "dense": NOTEBOOK,
            "dropout": {**NOTEBOOK, "dropout": 0.3},
            "pruned": {**NOTEBOOK, "prune": 0.3},
            "gate+rigl": {**NOTEBOOK, **GATE, **RIGL},
        },
        train=partial(train_published, make=notebook),
        step=partial(step_published, make=notebook),
        seeds=SEEDS_42,
        changes=(WHOLE_TRAINING,),
        quick_rows=600,
    ),
    remarks=(
        "What the paper calls DynamicMLP is `gate+rigl`: 80 % of the first layer's connections are left out from the "
        "start, which the paper does not say. The gates are static.",
        "The own count uses mean p; the network uses hard gates and keeps at least a fifth of them open.",
        "All logits are equal at first, so the fifth that must stay open is all of them.",
        "`pruned` removes 30 % of the first layer before training, when all weights are still random.",
        "The official validation images are the test images, as published; no validation rows; the last epoch.",
    ),
)
AS_WRITTEN = Recipe(
    kind="written",
    table=Table(
        name="tiny-imagenet/written",
        data="tiny-imagenet",
        models=written(
            ("dense", "gate", "rigl", "gate+rigl"),
            weight=0.1,
            warmup=0.15,
            density=0.2,
            hidden=[256],
            epochs=20,
            batch=128,
            lr=1e-3,
            weight_decay=0.01,
            dropout=0.0,
        ),
        train=train_written,
        step=step_written,
        changes=(IN_MEMORY,),
        quick_rows=600,
    ),
    remarks=WRITTEN,
)
BY_US = Recipe(
    kind="ours",
    table=Table(
        name="tiny-imagenet/ours",
        data="tiny-imagenet",
        models=every(budget=0.39, hidden=[256], epochs=30, batch=256, lr=3e-4, dropout=0.1),
        train=train_settings,
        step=step_settings,
        changes=(IN_MEMORY,),
        quick={"epochs": 1, "batch": 64},
        quick_rows=600,
    ),
    remarks=OURS,
)
SECTION = Section(
    name="tiny-imagenet",
    number="5.3",
    title="Tiny-ImageNet, 12288-256-classes",
    training_rows=100_000,
    printed={
        "dense": {"accuracy": 0.0324, "relative": 1.0, "params": 3_197_384},
        "dropout": {"accuracy": 0.0251, "relative": 1.0, "params": 3_197_384},
        "pruned": {"accuracy": 0.0428, "relative": 4_506_418 / 6_393_856, "params": 3_197_384},
        "gate+rigl": {"accuracy": 0.0297, "relative": 1_273_117 / 6_393_856, "params": 3_197_640},
    },
    recipes=(PUBLISHED, AS_WRITTEN, BY_US),
)
