"""Layers that multiply by a weight matrix, whoever wrote them.

They are `nn.Linear` and `Conv1D` of Hugging Face Transformers, which stores its weight transposed. An adapter such as
LoRA replaces a layer by a wrapper with the same name in the model, and keeps it as `base_layer` below its own name.
Beside them `nn.Conv2d`, which multiplies by one at every position of an image, with channels in place of units.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

WRAPPED = "base_layer"
HOOKS = (  # of a forward pass, and what is known of each
    *("_forward_pre_hooks", "_forward_hooks", "_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs"),
    "_forward_hooks_always_called",
)
FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def is_linear(module: nn.Module) -> bool:
    """Whether a module itself, not one that it wraps, is an `nn.Linear` or a `Conv1D`."""
    return isinstance(module, nn.Linear) or is_conv1d(module)


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is a linear layer of GPT-2, whose weight is [inputs, outputs]."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def as_linear(module: nn.Module) -> nn.Linear:
    """A layer of GPT-2 as an `nn.Linear`: on the same weights, with the same hooks and children. A Linear as it is."""
    if not is_conv1d(module):
        if not isinstance(module, nn.Linear):
            raise ValueError(f"expected a linear layer, received {type(module).__name__}")
        return module
    old: Any = module
    new = nn.Linear(old.nx, old.nf, device="meta")
    new.weight = nn.Parameter(old.weight.detach().T, requires_grad=False)
    new.bias = nn.Parameter(old.bias.detach(), requires_grad=False)
    for hooks in HOOKS:
        setattr(new, hooks, getattr(old, hooks))
    for name, child in old.named_children():
        new.add_module(name, child)
    return new.train(old.training)


def is_conv2d(module: nn.Module) -> bool:
    """Whether a module itself is an `nn.Conv2d`; a transposed one is not."""
    return isinstance(module, nn.Conv2d)


def is_depthwise(module: nn.Module) -> bool:
    """Whether it is a Conv2d that computes each channel from the same channel of its input alone."""
    return isinstance(module, nn.Conv2d) and module.groups == module.in_channels == module.out_channels


def unwrapped(module: nn.Module) -> nn.Module:
    """The layer inside adapters; any other module as it is."""
    inner = getattr(module, WRAPPED, None)
    return unwrapped(inner) if isinstance(inner, nn.Module) else module


def outer_name(name: str) -> str:
    """The name of a layer as it was before adapters wrapped it, which is now that of the outermost wrapper."""
    parts = name.split(".")
    while parts and parts[-1] == WRAPPED:
        parts.pop()
    return ".".join(parts)


def adapter_sides(name: str) -> tuple[str, str]:
    """The layers whose inputs and whose outputs a linear layer has: itself, or for the two small ones of LoRA the layer
    that they are added to, on one side."""
    parts = name.split(".")
    for i, part in enumerate(parts):
        if part == "lora_A":
            return ".".join(parts[:i]), name
        if part == "lora_B":
            return name, ".".join(parts[:i])
    return name, name


def features(module: nn.Module) -> tuple[int, int] | None:
    """The inputs and outputs of a linear layer, quantised or not; None for any other module."""
    if is_conv1d(module):
        return int(module.nx), int(module.nf)  # type: ignore[arg-type]
    found = getattr(module, "in_features", None), getattr(module, "out_features", None)
    return (found[0], found[1]) if isinstance(found[0], int) and isinstance(found[1], int) else None


def in_features(layer: nn.Module) -> int:
    """How many values a linear layer reads."""
    return _features(layer)[0]


def out_features(layer: nn.Module) -> int:
    """How many values a linear layer writes."""
    return _features(layer)[1]


def is_quantised(module: nn.Module) -> bool:
    """Whether it is a linear layer whose weights are not stored in floating point, or not as a matrix."""
    weight = getattr(module, "weight", None)
    in_float = is_linear(module) and isinstance(weight, torch.Tensor) and weight.dtype in FLOATS
    return features(module) is not None and not in_float


def _features(layer: nn.Module) -> tuple[int, int]:
    found = features(layer)
    if found is None:
        raise TypeError(f"expected a linear layer, received {type(layer).__name__}")
    return found
