"""Timing several calls fairly: one after the other in changing order, on inputs made of the example's rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class RoundRobin:
    """The times of several calls, one of each per round."""

    def __init__(self, names: Iterable[str]) -> None:
        """No round yet."""
        self._order = list(names)
        self.times: dict[str, list[float]] = {name: [] for name in self._order}

    def run(self, measure: Callable[[str], float], *, skip: Collection[str] = ()) -> None:
        """One round: `measure` every call that is not in `skip`. Each round starts with another call, so that none
        always runs right after the same one."""
        for name in self._order:
            if name not in skip:
                self.times[name].append(measure(name))
        self._order.append(self._order.pop(0))


@contextmanager
def threads_of_torch(count: int | None) -> Iterator[None]:
    """So many threads of torch; None leaves them as they are."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def batches_of(rows_RD: Tensor, batch: int, *, at_most: int = 32, whole: bool = False) -> list[Tensor]:
    """Inputs of `batch` rows each, cycling through the given rows; fewer inputs for larger batches.

    whole: as many inputs as it takes to use every row, whatever `at_most` says.
    """
    count = min(at_most, 32 if batch <= 4 else 8 if batch <= 64 else 2)
    if whole:
        count = max(2, -(-len(rows_RD) // batch))
    index = torch.arange(count * batch, device=rows_RD.device) % len(rows_RD)
    return [rows_RD[part].contiguous() for part in index.split(batch)]
