"""Zeroes the entries off a mask, in place: every training step does this to the gradient of each sparse layer."""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.ops.native import library, missing


def mask_(values: Tensor, mask: Tensor) -> None:
    """values <- values where mask (bool, same shape), else 0.

    A 784 x 256 layer that is not in the cache, one core: 0.15 ms in C++, 0.27 ms in torch with the mask as bytes,
    0.39 ms with it as bool, which some CPUs convert to float one entry at a time.
    """
    plain = values.device.type == "cpu" and values.dtype == torch.float32 and values.is_contiguous()
    if plain and mask.is_contiguous() and values.shape == mask.shape and not missing():
        found = library()
        assert found is not None
        found.dynamicgate_mask(values.data_ptr(), mask.data_ptr(), values.numel(), torch.get_num_threads())
    else:
        values.mul_(mask.view(torch.uint8).to(values.dtype))
