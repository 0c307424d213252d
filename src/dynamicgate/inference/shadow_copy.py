"""Copies of a model: one that needs almost no memory of its own, and one in float64 to verify against."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn


def copy_sharing_memory(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, hooks bound to the copy, whose tensors are new objects on the same memory."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    memo |= {id(b): b.detach() for b in model.buffers()}
    return copy.deepcopy(model, memo).eval()


def copy_in_float64(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode that computes in float64 whatever `model` computes: its tensors are converted, and
    nothing else is changed."""

    def wide(tensor: Tensor) -> Tensor:
        return tensor.detach().double() if tensor.is_floating_point() else tensor.detach()

    memo: dict[int, Any] = {id(p): nn.Parameter(wide(p), requires_grad=False) for p in model.parameters()}
    memo |= {id(b): wide(b) for b in model.buffers()}
    found = copy.deepcopy(model, memo).eval()
    for old, new in zip(model.modules(), found.modules(), strict=True):
        if isinstance(old, nn.RMSNorm) and isinstance(new, nn.RMSNorm) and old.eps is None:
            # torch then takes that of the dtype it computes in: 1e-7 became 2e-16, and outputs differed by 1e-4
            new.eps = torch.finfo(torch.float32 if old.weight is None else old.weight.dtype).eps
    return found


@torch.no_grad()
def stop_sharing_(module: nn.Module, model: nn.Module) -> None:
    """Give `module` its own memory for every tensor that it shares with `model`, in place."""
    theirs = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    for part in module.modules():
        for name, tensor in part._buffers.items():
            if tensor is not None and tensor.untyped_storage().data_ptr() in theirs:
                part._buffers[name] = tensor.detach().clone()
        for parameter in part._parameters.values():
            if parameter is not None and parameter.untyped_storage().data_ptr() in theirs:
                parameter.data = parameter.data.clone()


def held_bytes(module: nn.Module) -> int:
    """The memory of all tensors of `module`; tensors that share memory count once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage() for t in (*module.parameters(), *module.buffers())}
    return sum(storage.nbytes() for storage in storages.values())
