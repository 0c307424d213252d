"""What choosing units by the input gains if the choice is free: a dense network that keeps, for every input, the units
that contribute most to the next layer, as many as the narrow network of the budget has.

To know them it computes them all, so this is a yardstick for gates and no method: a gate has to guess the choice from
the layer's input, and pays for that. Costs are counted as if the choice were free. Another rule might choose better.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import Settings, dense_macs
from dynamicgate.lab.methods.models import MODELS, Prepared
from dynamicgate.lab.methods.train_one import run_one
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.training import settings_of
from dynamicgate.nn.mlp import GatedMLP

ORACLE = "oracle"


class KeepsLargest(nn.Module):
    """A dense MLP of which only some units of each hidden layer go on: the largest, by what they add to the next.

    kept: how many, for each hidden layer.
    """

    def __init__(self, dense: GatedMLP, kept: tuple[int, ...]) -> None:
        """Takes the layers of `dense`."""
        super().__init__()
        self.dense, self.kept = dense, kept

    def forward(self, x: Tensor) -> Tensor:
        """Class scores."""
        net, h = self.dense, self.dense.normalize(x)
        for layer, after, kept in zip(net.layers[:-1], net.layers[1:], self.kept, strict=True):
            h = net.act(layer(h))
            added = h.detach().abs() * after.weight.detach().norm(dim=0)  # type: ignore[operator]
            mask = torch.zeros_like(h).scatter_(-1, added.topk(kept, dim=-1).indices, 1.0)
            h = net.dropout(h * mask)
        scores: Tensor = net.layers[-1](h)
        return scores


def oracle(settings: Settings, splits: Splits) -> Prepared:
    """The dense network with as many units of each layer as the narrow one of the budget has."""
    dense, narrow = (MODELS[name](settings, splits).model for name in ("dense", "small"))
    assert isinstance(dense, GatedMLP)
    assert isinstance(narrow, GatedMLP)
    return Prepared(KeepsLargest(dense, narrow.sizes[1:-1]))


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """Train the oracle of a budget and measure it on the test rows."""
    torch.set_float32_matmul_precision("high")
    settings = settings_of(job, splits)
    run = run_one(settings, splits, job.folder, prepare=oracle, device=job.device, show=False)
    narrow, full = MODELS["small"](settings, splits).model, run["macs"]["dense"]
    assert isinstance(narrow, GatedMLP)
    executed = float(dense_macs(narrow.sizes))
    free = {"dense": full, "executed": executed, "gate": 0.0, "relative": executed / full}
    kept = {key: run[key] for key in ("seed", "data", "quality", "params", "seconds", "gates")}
    return {**kept, "model": job.model, "macs": free}
