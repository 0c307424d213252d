"""What a budget reads of a step: numbers of a GPU, perhaps one step later, and how much the rows of a process weigh."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.distributed import RowMeans, sum_, world_size
from dynamicgate.gating.recording import Usage


class LateReadings:
    """Takes the numbers of this step and gives those of the step before.

    A loop that reads a number of the step it is in stops until the GPU has done everything up to it, and the GPU then
    waits until Python has launched what comes next.
    """

    def __init__(self) -> None:
        """Nothing was read yet."""
        self._held: Tensor | None = None
        self._copied: torch.cuda.Event | None = None

    def exchange(self, values: Tensor) -> list[float]:
        """The numbers of the last call; in the first one, or if their number has changed, these."""
        before = self.values()
        self._hold(values)
        return before if before is not None and len(before) == len(values) else self.values() or []

    def values(self) -> list[float] | None:
        """What was given last, for a checkpoint; None before the first call. It waits, if it must."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        return None if self._held is None else self._held.tolist()

    def restore(self, values: list[float] | None) -> None:
        """Go on with what `values` gave."""
        self._copied = None
        self._held = None if values is None else torch.tensor(values, dtype=torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the numbers; an event of a GPU cannot be copied."""
        self.values()
        return vars(self)

    def _hold(self, values: Tensor) -> None:
        if values.device.type != "cuda":
            self._held = values.double().clone()
            return
        self._held = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        self._held.copy_(values, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()


def scalar_like(value: float, like: Tensor) -> Tensor:
    """A scalar beside `like`, without a copy that a GPU would wait for."""
    return torch.full((), value, dtype=like.dtype, device=like.device)


def weight_of_rows(counter: MacCounter, used: Usage, means: RowMeans) -> float:
    """What the cost of this process's rows weighs in the mean over processes: more, if its sequences are longer."""
    if world_size() == 1 or counter.scaling is None or (work := used.work) is None:
        return means.weight
    dense = torch.tensor(counter.dense * work.samples, dtype=torch.float64, device=next(iter(used.values())).p.device)
    return float(dense) * world_size() / float(sum_(dense.clone()))
