"""One process or many: which one am I, who writes, and sums and means over all of them."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


def world_size() -> int:
    """Processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process; 0 writes files and shows progress."""
    return dist.get_rank() if world_size() > 1 else 0


def start(device: torch.device) -> None:
    """Join the process group that `torchrun` announced in the environment, if it did."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")


def stop() -> None:
    """Leave the process group."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def choose_device(name: str = "auto") -> torch.device:
    """ "auto" is the GPU of this process where there is one, else the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise ValueError(f"device must be auto, cpu or cuda, received {name!r}") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device {name!r} was asked for, but this machine has no CUDA GPU; use 'cpu' or 'auto'")
        return device
    if torch.cuda.is_available():
        return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    return torch.device("cpu")


def parallel(model: nn.Module) -> nn.Module:
    """The model wrapped in `DistributedDataParallel`, or itself in a single process."""
    if world_size() == 1:
        return model
    # Running statistics must be shared; masks, tau and theta are the same everywhere, and sending a mask as large as
    # the weight before every forward pass would cost more than the gradients.
    has_statistics = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    return DistributedDataParallel(model, broadcast_buffers=has_statistics)


def without_sync(model: nn.Module, *, skip: bool) -> AbstractContextManager[Any]:
    """Do not exchange gradients for a micro-batch that others of the same batch follow."""
    return model.no_sync() if skip and isinstance(model, DistributedDataParallel) else nullcontext()


def sum_(value: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(value)
    return value


def mean_(value: Tensor) -> Tensor:
    """The mean over all processes, in place: what DDP does to gradients."""
    return sum_(value).div_(world_size()) if world_size() > 1 else value


def average(*values: float, device: torch.device) -> list[float]:
    """The mean of each value over the processes."""
    if world_size() == 1:
        return list(values)
    return mean_(torch.tensor(values, dtype=torch.float64, device=device)).tolist()


def any_of(*flags: bool, device: torch.device) -> list[bool]:
    """Whether any process says so: what all must do together cannot depend on the clock of each."""
    return [mean > 0.0 for mean in average(*map(float, flags), device=device)]


def gather_named(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each process's tensors, under "<rank>.<name>", on every process."""
    if world_size() == 1:
        return {f"0.{name}": value for name, value in state.items()}
    every: list[Any] = [None] * world_size()
    dist.all_gather_object(every, state)
    return {f"{r}.{name}": value for r, part in enumerate(every) for name, value in part.items()}


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes, in the order of their numbers, on every process; they may have different numbers of
    them."""
    if world_size() == 1:
        return rows
    counts = [torch.zeros(1, dtype=torch.long, device=rows.device) for _ in range(world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    longest = max(int(count) for count in counts)
    padded = rows.new_zeros(longest, *rows.shape[1:])
    padded[: len(rows)] = rows
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


class RowMeans:
    """Means over rows that are spread over processes. Their gradients, averaged over the processes as DDP does, are
    those of one process on the joined batch."""

    def __init__(self, rows: Tensor) -> None:
        """For a batch of which this process holds `rows`; processes may hold different numbers of them."""
        self.weight, self.count = 1.0, rows.shape[0]
        if world_size() > 1:
            count = torch.tensor(float(rows.shape[0]), device=rows.device)
            self.count = int(sum_(count.clone()))
            self.weight = float(count) * world_size() / max(1, self.count)

    def stacked(self, *weighted: Tensor) -> Tensor:
        """The means of weighted values over processes, all at once."""
        return mean_(torch.stack([value.detach() for value in weighted]))

    def values(self, *weighted: Tensor) -> list[float]:
        """`stacked` as numbers: on a GPU every answer is a wait."""
        return self.stacked(*weighted).tolist()

    def local(self, value: Tensor) -> Tensor:
        """This process's part of `mean`, weighted by its rows."""
        return value.sum() / max(1, value.numel()) * self.weight

    def columns(self, value_BG: Tensor) -> Tensor:
        """The mean of each column over all rows of all processes, without a gradient."""
        rows_RG = value_BG.detach().flatten(0, -2)
        return mean_(rows_RG.sum(0) / max(1, len(rows_RG)) * self.weight)

    def mean(self, value: Tensor) -> Tensor:
        """The mean over all rows of all processes, with this process's part of the gradient."""
        local = self.local(value)
        return local + (self.values(local)[0] - local.detach()) if world_size() > 1 else local
