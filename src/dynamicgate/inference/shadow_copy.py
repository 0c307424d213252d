"""Copies of a model that need almost no memory of their own: compiling must not take three times the weights."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.gating.stages import STAGES

WEIGHTS_AT_A_TIME = 1 << 21  # that are converted to float64 at once: 16 MB


def copy_sharing_memory(model: nn.Module) -> nn.Module:
    """A copy in evaluation mode, hooks bound to the copy, whose tensors are new objects on the same memory."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.detach(), requires_grad=False) for p in model.parameters()}
    memo |= {id(b): b.detach() for b in model.buffers()}
    return copy.deepcopy(model, memo).eval()


def copy_in_float64(model: nn.Module) -> nn.Module:
    """A copy that computes in float64. A Linear converts a part of its weight at a time, while it runs."""
    wide_model = copy_sharing_memory(model)
    for module in wide_model.modules():
        held: Any = module
        # A stage gate reads the weight of its layer, so that one is converted for good.
        if type(module) is nn.Linear and not hasattr(module, STAGES):
            held.forward = _linear_in_float64(module)
            continue
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and tensor.is_floating_point():
                    wide: Any = tensor.detach().double()
                    is_parameter = isinstance(tensor, nn.Parameter)
                    tensors[name] = nn.Parameter(wide, requires_grad=False) if is_parameter else wide
    return wide_model


def _linear_in_float64(linear: nn.Linear) -> Any:
    def forward(x: Tensor) -> Tensor:
        wide = x.double()
        outputs = max(1, WEIGHTS_AT_A_TIME // linear.in_features)
        y = torch.cat([F.linear(wide, part.double()) for part in linear.weight.split(outputs)], dim=-1)
        return y if linear.bias is None else y + linear.bias.double()

    return forward


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
