"""What a gate on channels reads, and how it closes them.

Shapes in names: B images (any leading dimensions), C channels, H and W their size, P positions of a channel.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynamicgate.linears import is_conv2d, unwrapped


def pooled(x: Tensor, layer: nn.Module, channels: int) -> Tensor:
    """The input of `layer` as a gate reads it: the mean of each channel over all of its positions, [B, C]."""
    if is_conv2d(unwrapped(layer)):
        return x.mean((-2, -1))
    return x.unflatten(-1, (channels, -1)).mean(-1)


def images(x: Tensor, layer: nn.Module) -> torch.Size:
    """The leading dimensions of the input of `layer`: there is one decision for each image."""
    return x.shape[:-3] if is_conv2d(unwrapped(layer)) else x.shape[:-1]


def scale_channels(x: Tensor, layer: nn.Module, factor_BC: Tensor) -> Tensor:
    """The input of `layer` with every channel multiplied by its factor."""
    factor_BC = factor_BC.to(x.dtype)
    if is_conv2d(unwrapped(layer)):
        return x * factor_BC[..., None, None]
    return (x.unflatten(-1, (factor_BC.shape[-1], -1)) * factor_BC.unsqueeze(-1)).flatten(-2)


def per_value(per_channel_C: Tensor, values: int) -> Tensor:
    """What belongs to each channel, for each of the `values` that a layer reads or writes, channel after channel."""
    return per_channel_C.repeat_interleave(values // len(per_channel_C))
