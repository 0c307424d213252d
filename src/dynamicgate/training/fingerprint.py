"""What makes a run this run and no other: a checkpoint is continued only by a run that agrees in all of it."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.budget import Budget
from dynamicgate.data import Arrays
from dynamicgate.gating.recording import named_gates
from dynamicgate.sparsity import Sparsifier
from dynamicgate.training.options import Options

_BUDGET = tuple(f.name for f in fields(Budget) if f.init and f.name != "counter")


def identity(
    model: nn.Module,
    data: Arrays,
    budget: Budget | None,
    sparsifier: Sparsifier | None,
    options: Options,
    class_weights: Tensor | None,
) -> dict[str, Any]:
    """Settings as JSON values. The number of processes is not among them: it may change from one start to the next."""
    # without the addresses that the functions in a schedule print, which change from process to process
    held = {} if budget is None else {k: re.sub(" at 0x[0-9a-f]+", "", repr(getattr(budget, k))) for k in _BUDGET}
    count = len(data.y)
    sample = data.rows(torch.arange(count)[:: max(1, count // 1000)])
    return {
        **asdict(options),
        "data": [count, *sample.shape[1:], int(data.y.sum()), float(sample.double().mean())],
        "budget": held,
        "sparsifier": sparsifier.settings if sparsifier is not None else None,
        "class_weights": None if class_weights is None else class_weights.tolist(),
        "gates": {name: asdict(gate.config) for name, gate in named_gates(model).items()},
    }
