"""Change the order of the hidden units of a site: what the model computes stays the same, to rounding.

A unit is one row of every producer and one column of the consumer. They move together, with biases and masks.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from dynamicgate.gating.site_layers import check_layers
from dynamicgate.gating.sites import Site
from dynamicgate.linears import is_conv1d, out_features, unwrapped
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
        rows = torch.cat([order + start for start in range(0, out_features(layer), site.width)])
        for values in _of_outputs(layer):
            values.copy_(values[rows.to(values.device)])
    consumer = model.get_submodule(site.consumer)
    for values in _weights(consumer):
        dim = 0 if is_conv1d(consumer) else 1
        values.copy_(values.index_select(dim, order.to(values.device)))


def check_movable(model: nn.Module, site: Site) -> None:
    """An error for a site whose units cannot be moved."""
    if site.is_input or site.is_heads or site.factors:
        what = "features of the input" if site.is_input else "factors" if site.factors else "attention heads"
        raise ValueError(f"the units of the site {site} are {what}, whose order is fixed: leave it out with where=")
    check_layers(model, site)
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for name in (*site.producers, site.consumer):
        layer = model.get_submodule(name)
        if unwrapped(layer) is not layer:
            raise ValueError(f"{name!r} has an adapter, whose weights would not move along: order the units before")
        if any(owners[id(parameter)] > 1 for parameter in layer.parameters(recurse=False)):
            raise ValueError(f"{name!r} shares a parameter with another layer, whose units would move too")
        if connections(layer) is not None and (pattern := pattern_of(layer)) not in MOVABLE_PATTERNS:  # type: ignore[arg-type]
            raise ValueError(
                f"the connections of {name!r} are tiles ({pattern}) of neighbouring units, which would be torn apart: "
                "order the units before making the layer sparse"
            )


def weight_of(layer: nn.Module) -> Tensor:
    """The weight of a linear layer as outputs x inputs."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.T if is_conv1d(layer) else weight


def _weights(layer: nn.Module) -> Iterator[Tensor]:
    """The weight, and the mask of a sparse layer."""
    assert isinstance(layer.weight, Tensor)
    yield layer.weight
    mask = connections(layer)
    if mask is not None:
        yield mask


def _of_outputs(layer: nn.Module) -> Iterator[Tensor]:
    """All that belongs to the outputs of a layer, outputs first."""
    for values in _weights(layer):
        yield values.T if is_conv1d(layer) else values
    if isinstance(layer.bias, Tensor):
        yield layer.bias
