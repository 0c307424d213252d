"""Whether gates slow a model down on this machine: at equal MACs they may, because a gate has to be computed too, and
what it leaves of a layer is less regular."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from dynamicgate import distributed
from dynamicgate.inference.compile_model import compile as compile_plan
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.timing import batches_of

BATCHES = (1, 256)
MOST_SLOWER = 1.03  # times as long as without gates, at the batch size where gates are slowest
SECONDS = 1.0  # of timing, for each model and each batch size


def slowdown(gated: nn.Module, plain: nn.Module, rows: Tensor, *, seconds: float = SECONDS) -> dict[int, float]:
    """How many times as long a call of `gated` takes as one of `plain`, by batch size: both compiled for the CPU, in
    turn on the same rows, with the threads that torch has. With several processes the mean over them."""
    rows, device = rows.cpu(), rows.device
    models = {"gated": gated, "plain": plain}
    plans = {
        name: compile_plan(copy.deepcopy(model).cpu().eval(), rows, batches=BATCHES, seconds=seconds)
        for name, model in models.items()
    }
    ratios = []
    for batch in BATCHES:
        times = time_calls(plans, batches_of(rows, batch), seconds)
        ratios.append(times["gated"] / times["plain"])
    return dict(zip(BATCHES, distributed.average(*ratios, device=device), strict=True))


def is_slower(ratios: Mapping[int, float]) -> bool:
    """Whether that is too slow at some batch size."""
    return max(ratios.values()) > MOST_SLOWER


def in_words(ratios: Mapping[int, float]) -> str:
    """For a reason: at which batch size it takes how long."""
    return " and ".join(f"{ratio:.2f} times as long at batch {batch}" for batch, ratio in ratios.items())
