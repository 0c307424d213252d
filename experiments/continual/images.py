"""Permuted images on the device: one copy of the rows, and the order of features in each task."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.streams import scaled


class Images(NamedTuple):
    """Rows on the device, and the order of features in each task."""

    train: Tensor
    train_y: Tensor
    test: Tensor
    test_y: Tensor
    orders: Tensor

    def rows(self, tasks: Tensor, index_KB: Tensor, *, test: bool = False) -> Tensor:
        """Rows [K, B, D] of these tasks."""
        found = (self.test if test else self.train)[index_KB]
        return found.gather(2, self.orders[tasks][:, None].expand_as(found))


def images_of(splits: Splits, tasks: int, seed: int, device: torch.device) -> Images:
    """The same permutations as `permuted` draws."""
    flat = scaled(splits)
    features = flat.train.features
    orders = [
        torch.randperm(features, generator=torch.Generator().manual_seed(1_000_003 * seed + number))
        for number in range(tasks)
    ]
    parts = (flat.train.values, flat.train.y, flat.test.values, flat.test.y, torch.stack(orders))
    return Images(*(part.to(device) for part in parts))
