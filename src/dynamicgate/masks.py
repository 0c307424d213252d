"""The mask of a Linear layer: a bool buffer `mask`, shaped like the weight, and the name of its pattern.

`torch.nn.utils.prune` keeps a mask of its own, `weight_mask`, which counts too.

Weights without a connection are exactly zero *in the parameter*. The forward pass uses the weight as it is, and the
gradient stays dense, so that new connections can be chosen by it (sec 3.7). `dynamicgate.sparsity` keeps these zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

UNSTRUCTURED = "unstructured"
PRUNED = "weight_mask"  # as torch.nn.utils.prune names it


def connections(linear: nn.Module) -> Tensor | None:
    """The mask of existing connections, if the layer has one: ours, in bool, or that of `torch.nn.utils.prune`, in the
    dtype of the weight. Always the tensor that the layer holds, so that its version says when it changes."""
    buffers = linear._buffers
    mask = buffers.get("mask", vars(linear).get("mask", linear._parameters.get("mask")))
    if mask is None and type(linear) is not nn.Linear:  # every training step asks, and a search that fails takes long
        mask = getattr(linear, "mask", None)
    return mask if isinstance(mask, Tensor) else buffers.get(PRUNED)


def is_pruned(module: nn.Module) -> bool:
    """Whether `torch.nn.utils.prune` has a mask on its weight."""
    return module._buffers.get(PRUNED) is not None


def pattern_of(linear: nn.Linear) -> str:
    """The pattern of the mask, for example "16x1": what a kernel may rely on."""
    return getattr(linear, "mask_pattern", UNSTRUCTURED)


@torch.no_grad()
def put_mask_(linear: nn.Linear, mask: Tensor, pattern: str = UNSTRUCTURED) -> None:
    """Register a mask on a layer and set the weights of missing connections to zero."""
    if mask.shape != linear.weight.shape:
        raise ValueError(
            f"a mask has the shape of the weight, {list(linear.weight.shape)}, received {list(mask.shape)}"
        )
    declare_mask_(linear, mask.to(linear.weight.device, torch.bool), pattern)
    linear.weight.mul_(linear.mask)  # type: ignore[arg-type]


def declare_mask_(linear: nn.Linear, mask: Tensor, pattern: str) -> None:
    """Register a mask whose values, and the weights that go with it, are loaded later."""
    if is_pruned(linear):
        raise ValueError(
            "a layer has a mask of torch.nn.utils.prune already: take it off with dynamicgate.sparsity.finalize_ "
            "first, its zeros stay in the weights"
        )
    linear.register_buffer("mask", mask)
    held: Any = linear
    held.mask_pattern = pattern


def present(linear: nn.Module) -> int:
    """How many connections exist."""
    mask = connections(linear)
    weight: Any = linear.weight
    return weight.numel() if mask is None else int(mask.sum())
