"""Gated layers of any size, and the errors of an implementation against the float64 reference, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dynamicgate.ops.ffn import FFNWeights, gated_ffn, reference_ffn

Tensors = dict[str, Tensor | None]  # the inputs of a layer, by name


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
) -> Tensors:
    """Random x, factor and weights. opened: the fraction of open blocks, or which are open. patterns: how many gate
    patterns the tokens have; 0: each its own."""
    random = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return (torch.randn(*shape, generator=random, device=device) / shape[-1] ** 0.5).to(dtype)

    rows, G = patterns or T, -(-N // block)
    weight_RG = torch.rand(rows, G, generator=random, device=device) + 0.5
    chosen = torch.rand(rows, G, generator=random, device=device) < opened if isinstance(opened, float) else opened
    factor_TG = weight_RG * chosen
    if patterns:
        factor_TG = factor_TG[torch.randint(patterns, (T,), generator=random, device=device)]
    made: Tensors = {"x": normal(T, D) * D**0.5, "factor": factor_TG, "up": normal(N, D), "down": normal(O, N)}
    made |= {"up_bias": normal(N) if bias else None, "down_bias": normal(O) if bias else None}
    made |= {"value": normal(N, D) if value else None, "value_bias": normal(N) if bias and value else None}
    return {name: made[name] for name in ("x", "factor", *FFNWeights._fields)}


def weights_of(given: Tensors) -> FFNWeights:
    """The weights among the inputs."""
    return FFNWeights(*(given[name] for name in FFNWeights._fields))  # type: ignore[arg-type]


def call(function: Callable[..., Tensor], given: Tensors, **options: Any) -> Tensor:
    """`gated_ffn` or `reference_ffn` on these inputs."""
    return function(given["x"], weights_of(given), given["factor"], **options)


def in_float64(given: Tensors) -> Tensors:
    """The inputs in float64."""
    return {name: None if t is None else t.double() for name, t in given.items()}


def run(
    function: Callable[..., Tensor], given: Tensors, dtype: torch.dtype | None, **options: Any
) -> dict[str, Tensor]:
    """The result and all gradients, for a fixed random gradient of the result."""
    leaves = {
        name: None if t is None else (t if dtype is None else t.to(dtype)).detach().clone().requires_grad_()
        for name, t in given.items()
    }
    y = call(function, leaves, **options)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(given["x"].dtype).to(y)
    y.backward(dy)
    grads = {f"d {name}": t.grad for name, t in leaves.items() if t is not None}
    assert all(grad is not None for grad in grads.values())
    return {"y": y.detach(), **grads}


def errors(given: Tensors, **options: Any) -> dict[str, float]:
    """Relative errors of `gated_ffn` against the reference in float64, of the result and of every gradient."""
    found = run(gated_ffn, given, None, **options)
    right = run(reference_ffn, given, torch.float64, **options)
    return {name: _relative(found[name], right[name]) for name in right}


def _relative(found: Tensor, right: Tensor) -> float:
    size = right.norm().item()
    return ((found.double() - right).norm() / size).item() if size else found.double().norm().item()
