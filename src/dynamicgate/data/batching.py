"""Which rows make up each batch: a pure function of (seed, epoch), so that resuming needs no saved state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch


def seeded(seed: int, *key: int) -> np.random.Generator:
    """The random stream of `seed`, and of `key` under it (an epoch, say): equal arguments, equal numbers."""
    if seed < 0 or min(key, default=0) < 0:
        raise ValueError(
            f"seeds and epochs must be 0 or more, got seed {seed}" + (f" and epoch {key[0]}" if key else "")
        )
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def batches(
    n: int,
    batch: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
    drop_last: bool = False,
    rank: int = 0,
    world: int = 1,
) -> Iterator[torch.Tensor]:
    """Row positions of one epoch, batch by batch; `batch` is the global batch, shared out over `world` processes.

    Each process gets a contiguous, near-equal slice of every global batch: the slices of all ranks, in order, are the
    batch one process would see. Every rank gets the same number of batches; in a last batch of fewer than `world` rows
    the highest ranks get an empty slice, so that no process waits for another that has already stopped.
    """
    if n < 1 or batch < 1:
        raise ValueError(f"n and batch must be 1 or more, got n {n} and batch {batch}")
    if world < 1 or not 0 <= rank < world:
        raise ValueError(f"rank must be 0..world-1 with world 1 or more, got rank {rank} and world {world}")
    if batch < world:
        raise ValueError(f"a global batch of {batch} rows leaves some of {world} processes idle; use {world} or more")
    if drop_last and n < batch:
        raise ValueError(f"{n} rows give no batch of {batch} with drop_last; use a smaller batch or keep the last one")
    order = torch.from_numpy(seeded(seed, epoch).permutation(n)) if shuffle else torch.arange(n)
    end = n - n % batch if drop_last else n
    return (order[start : start + batch].tensor_split(world)[rank] for start in range(0, end, batch))
