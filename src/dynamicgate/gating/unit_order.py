"""Change the order of the hidden units of a site: what the model computes stays the same, to rounding.

A unit is one row of every producer and one column of the consumer. They move together, with biases and masks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dynamicgate.gating.sites import Site
from dynamicgate.masks import UNSTRUCTURED, connections, pattern_of

MOVABLE_PATTERNS = (UNSTRUCTURED, "fan-in")  # tiles of neighbouring units would be torn apart


@torch.no_grad()
def permute_units_(model: nn.Module, site: Site, order: Tensor) -> None:
    """Put unit `order[i]` of a site at position i, in place; parameters stay the same objects.

    A producer with twice as many outputs as the site has units is a fused one (`gate_up_proj`): two halves that are
    moved alike. Call `check_movable` first.
    """
    for name in site.producers:
        layer = model.get_submodule(name)
        rows = torch.cat([order + start for start in range(0, _outputs(layer), site.width)])
        for values in _of_outputs(layer):
            values.copy_(values[rows.to(values.device)])
    consumer = model.get_submodule(site.consumer)
    for values in _weights(consumer):
        dim = 0 if _transposed(consumer) else 1
        values.copy_(values.index_select(dim, order.to(values.device)))


def check_movable(model: nn.Module, site: Site) -> None:
    """An error for a site whose units cannot be moved."""
    if site.is_input:
        raise ValueError(f"the units of the site {site} are features of the input, and their order is not the model's")
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for name in (*site.producers, site.consumer):
        layer = model.get_submodule(name)
        _check_layer(layer, name, site)
        if any(owners[id(parameter)] > 1 for parameter in layer.parameters(recurse=False)):
            raise ValueError(f"{name!r} shares a parameter with another layer, whose units would move too")
        if connections(layer) is not None and pattern_of(layer) not in MOVABLE_PATTERNS:  # type: ignore[arg-type]
            raise ValueError(
                f"the connections of {name!r} are tiles ({pattern_of(layer)}) of neighbouring units, which would be "  # type: ignore[arg-type]
                "torn apart: order the units before making the layer sparse"
            )


def _check_layer(layer: nn.Module, name: str, site: Site) -> None:
    """Plain weights of the right size, or an error."""
    allowed = (site.width,) if name == site.consumer else (site.width, 2 * site.width)
    weight = getattr(layer, "weight", None)
    if (
        not (isinstance(layer, nn.Linear) or _transposed(layer))
        or not isinstance(weight, Tensor)
        or not weight.is_floating_point()
    ):
        raise ValueError(
            f"{name!r} is a {type(layer).__name__}: units can be moved in nn.Linear and Conv1D layers with plain "
            "weights only. Order them before adding adapters or quantising"
        )
    units = _inputs(layer) if name == site.consumer else _outputs(layer)
    if units not in allowed:
        raise ValueError(f"the site says {site.width} units, but {name!r} has {units}")


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a layer as outputs x inputs."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.T if _transposed(layer) else weight


def _transposed(layer: nn.Module) -> bool:
    """Whether it keeps its weight as inputs x outputs, as the Conv1D of GPT-2 does."""
    return type(layer).__name__ == "Conv1D"


def _weights(layer: nn.Module) -> Iterator[Tensor]:
    """The weight, and the mask of a sparse layer."""
    assert isinstance(layer.weight, Tensor)
    yield layer.weight
    mask = connections(layer)  # type: ignore[arg-type]
    if mask is not None:
        yield mask


def _of_outputs(layer: nn.Module) -> Iterator[Tensor]:
    """All that belongs to the outputs of a layer, outputs first."""
    for values in _weights(layer):
        yield values.T if _transposed(layer) else values
    if isinstance(layer.bias, Tensor):
        yield layer.bias


def _outputs(layer: nn.Module) -> int:
    return weight_of(layer).shape[0]


def _inputs(layer: nn.Module) -> int:
    return weight_of(layer).shape[1]
