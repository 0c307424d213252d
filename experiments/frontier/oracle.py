"""What choosing units by the input could gain at most: a dense network that keeps, for every input, the units that
contribute most to the next layer, as many as the narrow network of the budget has.

To know them it computes them all, so this is a bound for gates and no method: a gate has to guess the choice from the
layer's input, and pays for that. Costs are counted as if the choice were free.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.measurement import measure
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import given
from dynamicgate.lab.methods.models import MODELS
from dynamicgate.lab.runner import Job
from dynamicgate.lab.runner.training import settings_of
from dynamicgate.nn.mlp import GatedMLP
from dynamicgate.training import fit

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


def train(job: Job, splits: Splits) -> dict[str, Any]:
    """Train the oracle of a budget and measure it on the test rows."""
    torch.set_float32_matmul_precision("high")
    settings = settings_of(job, splits)
    torch.manual_seed(settings.seed)
    dense, narrow = (MODELS[name](settings, splits).model for name in ("dense", "small"))
    assert isinstance(dense, GatedMLP)
    assert isinstance(narrow, GatedMLP)
    model = KeepsLargest(dense, narrow.sizes[1:-1])
    history = fit(
        model, splits.train, valid=splits.valid, epochs=given(settings.epochs), batch=given(settings.batch),
        lr=given(settings.lr), weight_decay=settings.weight_decay, seed=settings.seed, device=job.device,
        out=job.folder, show=False,
    )  # fmt: skip
    found, of_narrow = measure(model, splits.test).to_dict(), measure(narrow, splits.test).to_dict()["macs"]
    full = found["macs"]["dense"]
    free = {"dense": full, "executed": of_narrow["executed"], "gate": 0.0, "relative": of_narrow["executed"] / full}
    return {
        "model": job.model, "seed": job.seed, "data": splits.name, "quality": found["quality"], "macs": free,
        "params": found["params"], "seconds": history.seconds, "gates": [],
    }  # fmt: skip
