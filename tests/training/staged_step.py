"""Two processes with different numbers of rows: the gradients, the focus and the cut of one step, into a file."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import dynamicgate as dg
from dynamicgate import distributed
from dynamicgate.gating.stages import stages_of
from dynamicgate.training import StageLoss
from tests.training.easy import blobs
from tests.training.staged_run import staged


def step(rows: slice) -> dict[str, Tensor]:
    """Two steps of a loop of one's own on these rows of 23, in float64."""
    model = staged("head").double()
    x, y = blobs(23, spread=1.5)
    parallel, budget, loss = distributed.parallel(model), dg.Budget(target=0.4), StageLoss(focus=0.6, distill=0.3)
    for progress in (0.0, 0.5):  # the cut of the first one is the focus of the second
        model.zero_grad()
        budget.apply_(model, progress)
        with dg.usage(model) as used:
            parallel(x[rows].double())
        each = loss.of_rows(used, lambda out: F.cross_entropy(out, y[rows], reduction="none"))
        total = each.sum() / 23 * distributed.world_size()  # DDP averages gradients
        (total + budget.step(used, progress)).backward()
    stages = stages_of(model)
    assert stages is not None
    assert budget.relative is not None
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {**found, "cut": stages.cut.clone(), "relative": torch.tensor(budget.relative)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    distributed.start(torch.device("cpu"))
    rank = distributed.rank()
    save_file(step([slice(0, 17), slice(17, 23)][rank]), f"{sys.argv[1]}.{rank}")
    distributed.stop()
