"""A DataLoader as `fit` uses it: its own batches in its own order, one pass per epoch."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from dynamicgate import distributed
from dynamicgate.data.contract import Inputs, count_samples, iterate, take_first
from dynamicgate.data.targets import as_targets
from dynamicgate.data.tasks import Task

EXAMPLE = 2  # rows


class LoaderStream:
    """The batches of a DataLoader.

    The order of an epoch is drawn from the seed of the run and the number of the epoch, so that a run that is continued
    meets the batches it has not seen; unless the loader has a generator or a sampler of its own, whose order is theirs.
    """

    def __init__(self, loader: DataLoader[Any], what: str) -> None:
        """Read the first batch as an example."""
        try:
            self.steps = len(loader)
        except TypeError as error:
            raise TypeError(
                f"{what}: a DataLoader must know how many batches an epoch has, for the learning rate and the budget: "
                "give its dataset a __len__"
            ) from error
        if not self.steps:
            raise ValueError(f"{what}: the DataLoader has no batches")
        if distributed.world_size() > 1 and not isinstance(loader.sampler, DistributedSampler):
            raise ValueError(
                f"{what}: in several processes every DataLoader must give its process other rows: pass it "
                "sampler=torch.utils.data.DistributedSampler(dataset)"
            )
        self.loader, self.what = loader, what
        inputs, targets = next(self.epoch(0, 0))
        self.example: Inputs = take_first(inputs, EXAMPLE)
        self.example_targets: Tensor = targets[: count_samples(self.example)]

    def epoch(self, seed: int, epoch: int, done: int = 0) -> Iterator[tuple[Inputs, Tensor]]:
        """The batches of an epoch without the first `done`."""
        if isinstance(self.loader.sampler, DistributedSampler):
            self.loader.sampler.set_epoch(epoch)
        with torch.random.fork_rng(devices=[]):  # what the order is drawn from; the run's own numbers stay as they are
            torch.manual_seed(seed + 1_000_003 * (epoch + 1))
            every = self._all()
            skipped = list(islice(every, max(1, done)))  # a sampler draws its order when the first batch is asked for
        if not done:
            yield from skipped
        yield from every

    def batches(self, size: int) -> Iterator[tuple[Inputs, Tensor]]:
        """One pass. The sizes of batches are those of the loader."""
        return self.epoch(0, 0)

    @property
    def settings(self) -> dict[str, Any]:
        """What can be said about the data without reading them all."""
        return {"loader batches": self.steps, "batch_size": self.loader.batch_size}

    def _all(self) -> Iterator[tuple[Inputs, Tensor]]:
        for inputs, targets in iterate(self.loader, 0):
            if targets is None:
                raise TypeError(f"{self.what}: every batch must be a pair (inputs, targets)")
            yield inputs, torch.as_tensor(as_targets(targets, self.what))


def as_read(task: Task, targets: Tensor) -> Tensor:
    """Targets of a batch in the type that their task reads."""
    if task.name == "classification":
        return targets.to(torch.int64)
    return targets if task.name == "own" else targets.float()
