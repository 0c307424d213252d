"""The layers of a site in a model, and whether a gate can sit there."""

from __future__ import annotations

from torch import nn

from dynamicgate.gating.config import GateConfig
from dynamicgate.gating.sites import Site
from dynamicgate.linears import in_features, is_conv2d, is_linear, is_quantised, out_features, unwrapped


def check_layers(model: nn.Module, site: Site) -> None:
    """An error for a site whose layers are neither linear nor convolutions, or do not write and read its units."""
    names = dict.fromkeys((*(() if site.factors else (site.consumer,)), site.source, *site.producers))
    layers = {name: unwrapped(model.get_submodule(name)) for name in names}
    for name, layer in layers.items():
        kind = type(layer).__name__
        if is_quantised(layer):
            raise ValueError(
                f"{name!r} is a quantised {kind}, and gates need layers in floating point: load the model without "
                "quantisation"
            )
        if not is_linear(layer) and not is_conv2d(layer):
            raise ValueError(
                f"a gate reads and closes units in front of nn.Linear layers, or channels of nn.Conv2d layers, and "
                f"{name!r} is a {kind}; the site is {site}"
            )
    if site.channels or any(map(is_conv2d, layers.values())):
        _check_channels(site, layers)
        return
    if site.factors:
        for name in (site.source, *site.producers):
            if out_features(layers[name]) != site.width:
                raise ValueError(
                    f"{name!r} writes {out_features(layers[name])} values for {site.width} factors: {site}"
                )
        return
    if site.width != in_features(layers[site.consumer]):
        raise ValueError(
            f"the site says {site.width} units, but {site.consumer!r} reads {in_features(layers[site.consumer])}"
        )
    for name in site.producers:
        _check_written(name, out_features(layers[name]), site)


def _check_channels(site: Site, layers: dict[str, nn.Module]) -> None:
    """Channels are written by convolutions, and read by one or by a Linear."""
    others = [name for name in site.producers if not is_conv2d(layers[name])]
    if not site.producers or others:
        what = f"{others[0]!r} is a {type(layers[others[0]]).__name__}" if others else "nothing writes them"
        raise ValueError(f"channels are gated behind the nn.Conv2d layers that write them, and {what}: {site}")
    if not site.channels:
        raise ValueError(f"{site.producers[0]!r} is a Conv2d, which writes channels: pass Site(..., channels=True)")
    consumer = layers[site.consumer]
    read = consumer.in_channels if is_conv2d(consumer) else in_features(consumer)
    if read != site.width and (is_conv2d(consumer) or int(read) % site.width):  # type: ignore[arg-type]
        values = "channels" if is_conv2d(consumer) else "values, which is no multiple of them"
        raise ValueError(f"the site says {site.width} channels, but {site.consumer!r} reads {read} {values}")
    for name in site.producers:
        if layers[name].out_channels != site.width:
            raise ValueError(
                f"{name!r} writes {layers[name].out_channels} channels, and {site.consumer!r} reads {site.width}"
            )
    if site.source != site.consumer and not is_conv2d(layers[site.source]):
        raise ValueError(
            f"a gate on channels reads the input of a Conv2d, or with source={site.consumer!r} the channels "
            f"themselves; {site.source!r} is a {type(layers[site.source]).__name__}"
        )


def check_kind(site: Site, config: GateConfig) -> None:
    """An error for a kind of gate that this site cannot have."""
    if site.channels and config.kind == "context":
        raise ValueError(
            f"gates of kind 'context' name contexts by what Linear layers read, and {site.name!r} reads channels of "
            "convolutions: leave it out of `where`, or take kind='dynamic', 'static' or 'router'"
        )
    if site.factors and config.net != "magnitude":
        raise ValueError(
            f"factors are closed by how large they are: expected net='magnitude' and reads='same' for {site}, received "
            f"kind={config.kind!r} and net={config.net!r}"
        )


def features_read(source: nn.Module, site: Site) -> int:
    """How many values the gate of a site reads, whose source is this layer."""
    if site.factors:
        return site.width
    if not site.channels:
        return in_features(source)
    return int(source.in_channels) if is_conv2d(source) else site.width  # type: ignore[arg-type]


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
