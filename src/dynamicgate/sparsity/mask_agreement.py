"""A fingerprint of masks, and a check that all processes hold the same ones."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch import distributed as dist

from dynamicgate import distributed


def fingerprint(masks: Mapping[str, Tensor]) -> int:
    """A number that changes if any connection of any layer changes."""
    digest = hashlib.blake2b(digest_size=7)  # fits an int64
    for name, mask in masks.items():
        digest.update(name.encode())
        digest.update(mask.cpu().numpy().tobytes())
    return int.from_bytes(digest.digest(), "big")


def check_agreement(masks: Mapping[str, Tensor]) -> None:
    """Raise an error unless all processes hold the same masks."""
    if distributed.world_size() == 1:
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
