"""The order of rows in training: a pure function of seed and epoch, so that resuming needs no saved state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch


def seeded(seed: int, *key: int) -> np.random.Generator:
    """The random stream of `seed`, or of `key` (an epoch, for example) under it: equal arguments, equal numbers."""
    if seed < 0 or min(key, default=0) < 0:
        raise ValueError(
            f"seeds and epochs must be 0 or more, got seed {seed}" + (f" and epoch {key[0]}" if key else "")
        )
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def batches(n: int, batch: int, *, seed: int, epoch: int) -> Iterator[torch.Tensor]:
    """Shuffled row positions of one epoch, `batch` at a time; the last batch may be smaller."""
    if n < 1 or batch < 1:
        raise ValueError(f"n and batch must be 1 or more, got n {n} and batch {batch}")
    order = torch.from_numpy(seeded(seed, epoch).permutation(n))
    return (order[start : start + batch] for start in range(0, n, batch))
