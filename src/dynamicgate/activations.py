"""The one table of activations: whatever knows, saves, recognises or computes them reads it here.

Those of Hugging Face Transformers are classes of its own; they are recognised by name.

To add an activation, add a line to `ACTIVATIONS`, its code to `csrc/program.h` and its formula to `csrc/activation.h`.
If the Triton kernels are to compute it as well, add it to `activate` and `slope` in `ops/ffn/tiles.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Activation(NamedTuple):
    """A function that is applied to each unit by itself."""

    name: str
    function: Callable[[Tensor], Tensor]
    """The definition: what the reference implementations compute."""
    module: type[nn.Module]
    """Its module; `options` are the arguments that make it this activation."""
    code: int
    """In the C++ kernels: enum Activation of csrc/program.h."""
    calls: tuple[Callable[..., Tensor] | str, ...] = ()
    """The functions, and names of tensor methods, that compute it too (with `options` as keyword arguments)."""
    options: Mapping[str, Any] = MappingProxyType({})
    in_layers: bool = True
    """Whether the layers of `dynamicgate.nn` offer it."""
    in_triton: bool = False
    """Whether the Triton kernels compute it."""
    makes_zeros: bool = False
    """Whether many of its results are exactly zero, so that a layer behind it can skip inputs."""
    slope_from_output: bool = False
    """Whether its derivative can be read off its result, so that a backward pass needs nothing else."""

    def build(self) -> nn.Module:
        """A new module that computes it."""
        return self.module(**self.options)


def _identity(h: Tensor) -> Tensor:
    return h


def quick_gelu(h: Tensor) -> Tensor:
    """GELU with a sigmoid in place of the normal distribution, as in CLIP."""
    return h * torch.sigmoid(1.702 * h)


def relu2(h: Tensor) -> Tensor:
    """The square of ReLU."""
    return torch.relu(h).square()


class QuickGELU(nn.Module):
    """`quick_gelu` as a module."""

    def forward(self, h: Tensor) -> Tensor:
        """For each unit."""
        return quick_gelu(h)


class SquaredReLU(nn.Module):
    """`relu2` as a module."""

    def forward(self, h: Tensor) -> Tensor:
        """For each unit."""
        return relu2(h)


ACTIVATIONS: Mapping[str, Activation] = {
    activation.name: activation
    for activation in (
        Activation(
            "identity", _identity, nn.Identity, 0, in_layers=False, in_triton=True, slope_from_output=True
        ),
        Activation(
            "relu", torch.relu, nn.ReLU, 1, (F.relu, torch.relu, "relu"), in_triton=True, makes_zeros=True,
            slope_from_output=True,
        ),
        Activation("gelu", F.gelu, nn.GELU, 2, (F.gelu,), {"approximate": "none"}, in_triton=True),
        Activation("silu", F.silu, nn.SiLU, 4, (F.silu,), in_triton=True),
        Activation("tanh", torch.tanh, nn.Tanh, 5, (F.tanh, torch.tanh, "tanh")),
        Activation(
            "gelu_tanh", partial(F.gelu, approximate="tanh"), nn.GELU, 3, (F.gelu,), {"approximate": "tanh"},
            in_layers=False, in_triton=True,
        ),
        Activation("quick_gelu", quick_gelu, QuickGELU, 6, in_layers=False, in_triton=True),
        Activation("relu2", relu2, SquaredReLU, 7, in_layers=False, in_triton=True, makes_zeros=True),
    )
}  # fmt: skip
BY_CODE: Mapping[int, Activation] = {activation.code: activation for activation in ACTIVATIONS.values()}
IN_TRITON: tuple[str, ...] = tuple(name for name, activation in ACTIVATIONS.items() if activation.in_triton)
IN_LAYERS: tuple[str, ...] = tuple(name for name, activation in ACTIVATIONS.items() if activation.in_layers)

IN_TRANSFORMERS: Mapping[str, str] = {
    "LinearActivation": "identity",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "FastGELUActivation": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
    "QuickGELUActivation": "quick_gelu",
    "ReLUSquaredActivation": "relu2",
}
"""The classes of `transformers.activations` by name: that package is never imported here."""


def is_of_transformers(module: nn.Module) -> bool:
    """Whether it is an activation of Hugging Face Transformers; all of them act on each unit by itself."""
    return type(module).__module__ == "transformers.activations"


def of_module(module: nn.Module) -> str | None:
    """The name of the activation that `module` is; None for anything else, subclasses included."""
    if is_of_transformers(module):
        return IN_TRANSFORMERS.get(type(module).__name__)
    for name, activation in ACTIVATIONS.items():
        options = {key: getattr(module, key, None) for key in activation.options}
        if type(module) is activation.module and options == activation.options:
            return name
    return None


def of_call(target: object, arguments: Mapping[str, Any]) -> str | None:
    """The name of the activation that a function, or a tensor method of that name, computes; None for anything else."""
    for name, activation in ACTIVATIONS.items():
        defaults = activation.module()
        options = {key: arguments.get(key, getattr(defaults, key)) for key in activation.options}
        if target in activation.calls and options == activation.options:
            return name
    return None


def check_activation(name: str, allowed: tuple[str, ...]) -> None:
    """Raise ValueError for an activation that is not among those allowed."""
    if name not in allowed:
        raise ValueError(f"activation must be one of {', '.join(allowed)}, received {name!r}")
