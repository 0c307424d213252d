"""A compiled model has no derivatives: asking for one raises, instead of giving zeros or nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

WHY = "a compiled model is for inference and has no derivatives: differentiate the model that was compiled"


def without_gradient(x: Tensor) -> Tensor:
    """`x`, through which no derivative passes. Backward raises when it gets here; a derivative that is computed along
    the way (`torch.func`, forward mode) raises at once."""
    if torch.compiler.is_compiling():
        return x
    in_transform = torch._C._functorch.peek_interpreter_stack() is not None
    has_tangent = forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None
    if has_tangent or (in_transform and x.requires_grad):
        raise RuntimeError(WHY)
    return _Refuse.apply(x) if x.requires_grad and not in_transform else x  # type: ignore[no-untyped-call]


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(WHY)
