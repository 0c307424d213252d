"""What a pattern tells about a module: which layers below it write hidden units, and which one reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from dynamicgate.activations import is_of_transformers, of_module
from dynamicgate.linears import features, is_linear, unwrapped


class Roles(NamedTuple):
    """Layers by their names below the module: `getattr(module, "fc1")` is "fc1", two steps down is "output.dense"."""

    producers: tuple[str, ...]
    """They write the units, all from one input, which the gate reads too. A layer that writes two units for each (the
    two factors of a gated linear unit, one half after the other) is one producer."""
    consumer: str
    head_dim: int | None = None
    """For attention heads: units of one head."""
    heads_per_group: int = 1
    """For attention heads: heads that share their keys and values."""


def layer_below(module: nn.Module, name: str) -> nn.Module | None:
    """The layer of this name below a module, without adapters around it; None if there is none."""
    found: nn.Module | None = module
    for part in name.split("."):
        found = None if found is None else found._modules.get(part)
    return None if found is None else unwrapped(found)


def sizes_below(module: nn.Module, *names: str) -> list[tuple[int, int]] | None:
    """Inputs and outputs of the linear layers of these names below a module; None unless all are there."""
    layers = [layer_below(module, name) for name in names]
    found = [None if layer is None else features(layer) for layer in layers]
    return [size for size in found if size is not None] if None not in found else None


def modules_around(module: nn.Module, roles: Roles) -> list[nn.Module]:
    """The modules that compute what lies between the layers: `module`, and those in which a layer is written."""
    parents = {name.rpartition(".")[0] for name in (*roles.producers, roles.consumer)}
    return [module if not parent else module.get_submodule(parent) for parent in sorted({"", *parents})]


def activation_of(module: nn.Module, roles: Roles) -> str | None:
    """The name of the activation between the layers, as far as it is a module."""
    for child in _children(module, roles):
        if is_of_transformers(child) or of_module(child) not in (None, "identity"):
            return of_module(child) or type(child).__name__
    return None


def normalizes(module: nn.Module, roles: Roles, width: int) -> bool:
    """Whether a norm with a weight for each unit may lie between the layers: a closed unit would change the others."""
    for child in _children(module, roles):
        weight = child._parameters.get("weight")
        if weight is not None and weight.ndim == 1 and len(weight) == width and not is_linear(child):
            return True
    return False


def _children(module: nn.Module, roles: Roles) -> Iterator[nn.Module]:
    for around in modules_around(module, roles):
        yield from around.children()
