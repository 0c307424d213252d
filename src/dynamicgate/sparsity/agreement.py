"""Several processes that must hold the same masks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist


def several() -> bool:
    """Whether this process trains together with others."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def total_(value: Tensor) -> Tensor:
    """The sum over all processes, in place."""
    if several():
        dist.all_reduce(value)
    return value


def mean_(value: Tensor) -> Tensor:
    """The mean over all processes, in place: what DDP does to gradients."""
    return total_(value).div_(dist.get_world_size()) if several() else value


def fingerprint(masks: Mapping[str, Tensor]) -> int:
    """A number that differs if any connection of any layer does."""
    digest = hashlib.blake2b(digest_size=7)  # fits an int64
    for name, mask in masks.items():
        digest.update(name.encode())
        digest.update(mask.cpu().numpy().tobytes())
    return int.from_bytes(digest.digest(), "big")


def agree(masks: Mapping[str, Tensor]) -> None:
    """An error unless all processes hold the same masks."""
    if not several():
        return
    device = next(iter(masks.values())).device
    mine = torch.tensor(fingerprint(masks), device=device)
    low, high = mine.clone(), mine.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    if int(low) != int(high):
        raise RuntimeError(
            f"the masks of process {dist.get_rank()} differ from those of another process: every process must build "
            "the same model and sparsifier (same seed) and call sparsifier.step once for every optimizer step, after "
            "the gradients were reduced"
        )
