"""Conversions without training: for each token only some units are kept, chosen from the activations themselves.

An oracle computes all units to know which to keep, so what it executes is what would be left if somebody told it; it
bounds what a gate can reach. A threshold on the activated gate projection is a method: that projection is always
computed, the others only for the units above the threshold (CATS).

Shapes in names: B rows (any leading dimensions), N units, G blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from dynamicgate.gating.routing import top_k_mask
from dynamicgate.gating.sites import Site
from dynamicgate.hf.activity import observe
from experiments.conversion.models import layer_macs
from experiments.conversion.static_width import norms

QUANTILE_VALUES = 1 << 23  # of the activations of a layer that decide its threshold


class Selection(Protocol):
    """Keeps some units of each token while it is attached, and knows what that executes."""

    def attached(self) -> Any:
        """A context in which only the chosen units are kept."""

    def executed(self) -> float:
        """MACs of a token in all feed-forward layers, mean over the tokens seen so far."""


class Oracle:
    """Keeps the units, or blocks of neighbouring units, that add most to the output of the layer for this token."""

    def __init__(self, model: nn.Module, sites: Sequence[Site], fraction: float, block: int = 1) -> None:
        """`fraction` of the blocks of every layer."""
        self.model, self.sites, self.block = model, list(sites), block
        for site in sites:
            if site.width % block:
                raise ValueError(f"{site.name} has {site.width} units: expected a multiple of the block of {block}")
        self.counts = {site.name: max(1, round(fraction * site.width / block)) for site in sites}
        self.norms = {site.name: norms(model, site) for site in sites}

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Hooks in front of the layers that read the units."""
        handles = [
            self.model.get_submodule(site.consumer).register_forward_pre_hook(self._hook(site)) for site in self.sites
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def keep(self, site: Site, h_BN: Tensor) -> Tensor:
        """1 for the units that are kept, else 0."""
        score_BN = h_BN.float().abs() * self.norms[site.name]
        score_BG = score_BN.unflatten(-1, (-1, self.block)).square().sum(-1)
        return top_k_mask(score_BG, self.counts[site.name]).repeat_interleave(self.block, dim=-1)

    def _hook(self, site: Site) -> Any:
        def hook(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            return (args[0] * self.keep(site, args[0]).to(args[0].dtype), *args[1:])

        return hook

    def executed(self) -> float:
        """Every layer pays for the units that are kept, and nobody for choosing them."""
        return sum(
            sum(layer_macs(self.model, site).values()) * self.counts[site.name] * self.block / site.width
            for site in self.sites
        )


class Threshold:
    """Keeps the units whose activated gate projection is larger than a threshold of their layer."""

    def __init__(self, model: nn.Module, sites: Sequence[Site], ffn: float, batches: Sequence[Any]) -> None:
        """ffn: what is executed of the feed-forward layers, the whole gate projection included. The thresholds are put
        where that is so on `batches`, in the dense model."""
        self.model, self.sites = model, list(sites)
        self.kept = {site.name: kept_at(model, site, ffn) for site in sites}
        self.thresholds = self._calibrated(batches)
        self._seen = {site.name: [0.0, 0] for site in sites}

    def _calibrated(self, batches: Sequence[Any]) -> dict[str, float]:
        found: dict[str, list[Tensor]] = {site.name: [] for site in self.sites}

        def see(name: str, a_BN: Tensor) -> Tensor:
            found[name].append(a_BN.detach().float().abs().flatten())
            return a_BN

        with self._hooked(see):
            observe(self.model, self.sites, batches, lambda _site, _x, _h: None)
        return {name: _quantile(torch.cat(parts), 1.0 - self.kept[name]) for name, parts in found.items()}

    @contextmanager
    def _hooked(self, change: Any) -> Iterator[None]:
        handles = []
        for site in self.sites:
            activation = self.model.get_submodule(site.consumer.rpartition(".")[0]).act_fn
            assert isinstance(activation, nn.Module)

            def hook(_m: nn.Module, _args: Any, output: Tensor, name: str = site.name) -> Tensor:
                return change(name, output)

            handles.append(activation.register_forward_hook(hook))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def attached(self) -> Any:
        """Hooks behind the activations."""
        return self._hooked(self._cut)

    def _cut(self, name: str, a_BN: Tensor) -> Tensor:
        above_BN = a_BN.abs() > self.thresholds[name]
        seen = self._seen[name]
        seen[0] += float(above_BN.float().mean()) * above_BN[..., 0].numel()
        seen[1] += above_BN[..., 0].numel()
        return a_BN * above_BN

    def executed(self) -> float:
        """The gate projection in full, the others for the units above the threshold."""
        total = 0.0
        for site in self.sites:
            macs = layer_macs(self.model, site)
            always = macs[site.source]
            above, rows = self._seen[site.name]
            total += always + (sum(macs.values()) - always) * above / rows
        return total


def kept_at(model: nn.Module, site: Site, ffn: float) -> float:
    """The fraction of units above the threshold at which a layer executes `ffn` of its MACs."""
    macs = layer_macs(model, site)
    always, whole = macs[site.source], sum(macs.values())
    if len(site.producers) < 2 or ffn * whole <= always:
        raise ValueError(
            f"{site.name} always computes its gate projection, {always / whole:.0%} of the layer: expected a gated "
            f"layer and more than that, received {ffn:.0%}"
        )
    return (ffn * whole - always) / (whole - always)


def _quantile(values: Tensor, fraction: float) -> float:
    step = -(-len(values) // QUANTILE_VALUES)  # torch.quantile takes no more
    return float(torch.quantile(values[::step], fraction))
