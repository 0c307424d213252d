"""Gated layers of any size, and how far an implementation is from the float64 reference, gradients too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops.ffn import gated_ffn, reference

NAMES = ("x_TD", "up_ND", "down_ON", "factor_TG", "up_bias_N", "down_bias_O", "value_ND", "value_bias_N")


def tensors(
    T: int,
    D: int,
    N: int,
    O: int,  # noqa: E741
    block: int,
    *,
    opened: float | Tensor = 0.4,
    patterns: int = 0,
    bias: bool = True,
    value: bool = False,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
) -> dict[str, Tensor | None]:
    """Random arguments of `gated_ffn`. opened: share of open blocks, or which are; patterns: that tokens fall into."""
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=random, device=device) / shape[-1] ** 0.5).to(dtype)

    rows, G = patterns or T, -(-N // block)
    weight_RG = torch.rand(rows, G, generator=random, device=device) + 0.5
    chosen = torch.rand(rows, G, generator=random, device=device) < opened if isinstance(opened, float) else opened
    factor_TG = weight_RG * chosen
    if patterns:
        factor_TG = factor_TG[torch.randint(patterns, (T,), generator=random, device=device)]
    made = (normal(T, D) * D**0.5, normal(N, D), normal(O, N), factor_TG)
    biases = (normal(N), normal(O)) if bias else (None, None)
    values = (normal(N, D), normal(N) if bias else None) if value else (None, None)
    return dict(zip(NAMES, (*made, *biases, *values), strict=True))


def run(
    call: Callable[..., Tensor], given: dict[str, Tensor | None], dtype: torch.dtype | None, **options: Any
) -> dict[str, Tensor]:
    """The result and all gradients, for a fixed random gradient of the result."""
    leaves = {
        name: None if t is None else (t if dtype is None else t.to(dtype)).detach().clone().requires_grad_()
        for name, t in given.items()
    }
    y = call(**leaves, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(given["x_TD"].dtype).to(y)
    y.backward(dy)
    grads = {f"d {name}": t.grad for name, t in leaves.items() if t is not None}
    assert all(grad is not None for grad in grads.values())
    return {"y": y.detach(), **grads}


def errors(given: dict[str, Tensor | None], **options: Any) -> dict[str, float]:
    """Relative errors of `gated_ffn` against the reference in float64, of the result and of every gradient."""
    found = run(gated_ffn, given, None, **options)
    right = run(reference, given, torch.float64, **options)
    return {name: _relative(found[name], right[name]) for name in right}


def _relative(found: Tensor, right: Tensor) -> float:
    size = right.norm().item()
    return ((found.double() - right).norm() / size).item() if size else found.double().norm().item()
