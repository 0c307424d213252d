"""The layers of a site in a model, and whether a gate can sit there."""

from __future__ import annotations

from torch import nn

from dynamicgate.gating.sites import Site
from dynamicgate.linears import in_features, is_linear, is_quantised, out_features, unwrapped


def check_layers(model: nn.Module, site: Site) -> None:
    """An error for a site whose layers are not linear, or do not write and read its units."""
    names = dict.fromkeys((site.consumer, site.source, *site.producers))
    layers = {name: unwrapped(model.get_submodule(name)) for name in names}
    for name, layer in layers.items():
        kind = type(layer).__name__
        if is_quantised(layer):
            raise ValueError(
                f"{name!r} is a quantised {kind}, and gates need layers in floating point: load the model without "
                "quantisation"
            )
        if not is_linear(layer):
            raise ValueError(
                f"a gate reads and closes units in front of nn.Linear layers, and {name!r} is a {kind}; the site is "
                f"{site}"
            )
    if site.width != in_features(layers[site.consumer]):
        raise ValueError(
            f"the site says {site.width} units, but {site.consumer!r} reads {in_features(layers[site.consumer])}"
        )
    for name in site.producers:
        _check_written(name, out_features(layers[name]), site)


def _check_written(name: str, written: int, site: Site) -> None:
    """What is counted for a closed unit depends on what its producer writes for it."""
    if site.is_heads:
        fused = site.width + 2 * site.width // site.heads_per_group
        if written not in (site.width, fused):
            raise ValueError(
                f"{name!r} writes {written} values, and {site.consumer!r} reads {site.width}: expected {site.width} "
                f"for queries alone, or {fused} with keys and values"
            )
    elif written not in (site.width, 2 * site.width):
        raise ValueError(
            f"{name!r} writes {written} values, and {site.consumer!r} reads {site.width} units: expected one or two "
            f"values for each unit, {site.width} or {2 * site.width}"
        )
