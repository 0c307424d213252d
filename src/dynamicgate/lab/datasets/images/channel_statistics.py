"""Mean and standard deviation of each colour channel, published or measured, spread over the features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import torch

from dynamicgate.data.arrays import Arrays

Channels: TypeAlias = tuple[float, ...]


def published_statistics(
    table: Mapping[str, tuple[Channels, Channels]], normalisation: str, pixels: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean and standard deviation of each feature, from the entry `normalisation` of a table of channel statistics."""
    if normalisation not in table:
        raise ValueError(f"normalisation must be one of {', '.join(table)}, received {normalisation!r}")
    mean, std = table[normalisation]
    return per_feature(mean, pixels), per_feature(std, pixels)


def measured_statistics(images: Arrays) -> tuple[torch.Tensor, torch.Tensor]:
    """Exact mean and standard deviation of each channel over these images, per feature; a constant channel gets 1."""
    channels, height, width = images.x.shape[1:]
    counts = torch.zeros(channels, 256, dtype=torch.int64)
    for index in torch.arange(len(images)).split(512):
        batch = images.x[index]
        for channel in range(channels):
            counts[channel] += torch.bincount(batch[:, channel].flatten(), minlength=256)
    level = torch.arange(256, dtype=torch.float64) / 255
    frequency = counts / counts.sum(dim=1, keepdim=True, dtype=torch.float64)
    mean = frequency @ level
    variance = (frequency * (level - mean[:, None]).square()).sum(dim=1)
    std = torch.where((counts > 0).sum(dim=1) > 1, variance.sqrt(), 1.0)
    return per_feature(mean.tolist(), height * width), per_feature(std.tolist(), height * width)


def per_feature(channels: Sequence[float], pixels: int) -> torch.Tensor:
    """One value for each channel, repeated for all its pixels, in the order of `to_features`."""
    return torch.tensor(channels, dtype=torch.float32).repeat_interleave(pixels)
