"""Weights, gradients and optimizer state that FSDP spreads over processes (`DTensor`).

Masks are whole on every process, and every process computes the same ones. Where a value of all processes is needed,
all of them must ask for it together. Tensors that are not sharded are used as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops.mask import mask_


def is_sharded(value: Tensor) -> bool:
    """Whether this process holds only a part of the tensor."""
    return hasattr(value, "full_tensor")  # not isinstance: importing DTensor takes long


def whole(value: Tensor) -> Tensor:
    """The whole tensor."""
    sharded: Any = value
    return sharded.full_tensor() if is_sharded(value) else value


def finite(values: Tensor) -> bool:
    """Whether all values are finite. One that is not makes the sum so, which is faster than testing each."""
    return bool(whole(values.sum(dtype=torch.float32)).isfinite())


@torch.no_grad()
def set_at_(value: Tensor, index: Tensor, new: Tensor | float) -> None:
    """Set the entries at `index`, flat and of the whole tensor."""
    if not is_sharded(value):
        value.view(-1)[index] = new
        return
    changed = whole(value).clone()
    changed.view(-1)[index] = new
    _local(value).copy_(_part_like(value, changed))


def apply_mask_(value: Tensor, mask: Tensor) -> None:
    """Set the entries off a mask of the whole tensor to zero."""
    if is_sharded(value):
        mask_(_local(value), _part_like(value, mask).contiguous())
    else:
        mask_(value, mask)


def _local(value: Any) -> Tensor:
    return value.detach().to_local()


def _part_like(value: Any, given: Tensor) -> Tensor:
    """The part of `given` that this process holds of `value`."""
    from torch.distributed.tensor import distribute_tensor

    # src_data_rank=None: every process has all of it, nothing is sent
    return distribute_tensor(given, value.device_mesh, value.placements, src_data_rank=None).to_local()
