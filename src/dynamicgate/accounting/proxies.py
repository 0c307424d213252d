"""The paper's compute proxies (sec 3.6, 3.8(3)), and how gates depend on the input.

Proxies are named as what they are: they leave out the gate networks and the output layer, and they multiply means.
The number to quote is `macs["relative"]` of a measurement; `where_products_mislead` says where multiplying means fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.attention import AttentionMacs
from dynamicgate.accounting.convolutions import ConvMacs
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.linear import LayerMacs
from dynamicgate.gating.gate import Gate

MISLEADING = 0.05  # of the exact count


class Openness:
    """Running sums of p and g of one gate, per block and per class."""

    def __init__(self, name: str, gate: Gate) -> None:
        """Empty sums for `gate` at the site `name`."""
        self.name, self.gate = name, gate
        self.rows = 0
        self.p_sum = torch.zeros(gate.blocks, dtype=torch.float64)
        self.g_sum = torch.zeros(gate.blocks, dtype=torch.float64)
        self.class_sums: dict[int, tuple[int, Tensor]] = {}

    def add(self, p_BG: Tensor, g_BG: Tensor, y: Tensor | None) -> None:
        """Count one batch of decisions; the labels `y` are used where there is one row a sample."""
        if y is not None and g_BG.ndim == 2:
            for label in y.unique().tolist():
                rows = g_BG[(y == label).to(g_BG.device)]
                count, total = self.class_sums.get(label, (0, torch.zeros(self.gate.blocks, dtype=torch.float64)))
                self.class_sums[label] = (count + len(rows), total + rows.sum(0, dtype=torch.float64).cpu())
        p_BG, g_BG = p_BG.flatten(0, -2), g_BG.flatten(0, -2)
        self.rows += len(g_BG)
        self.p_sum += p_BG.sum(0, dtype=torch.float64).cpu()
        self.g_sum += g_BG.sum(0, dtype=torch.float64).cpu()

    @property
    def open(self) -> float:
        """Mean hard open rate over units."""
        return self._over_units(self.g_sum / self.rows)

    @property
    def probability(self) -> float:
        """Mean probability over units."""
        return self._over_units(self.p_sum / self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Evidence of input dependence: a static gate has `varying` = `variance` = 0 by construction."""
        rate = self.g_sum / self.rows
        classes = range(max(self.class_sums, default=-1) + 1)
        nothing = (1, torch.full((self.gate.blocks,), float("nan"), dtype=torch.float64))
        by_class = [self.class_sums.get(label, nothing) for label in classes]
        return {
            "name": self.name,
            "kind": self.gate.config.kind,
            "blocks": self.gate.blocks,
            "block": self.gate.block,
            "open": self.open,
            "always_on": self._over_units((rate == 1.0).double()),
            "always_off": self._over_units((rate == 0.0).double()),
            "varying": self._over_units(((rate > 0.0) & (rate < 1.0)).double()),
            "variance": self._over_units(rate * (1.0 - rate)),
            "open_by_class": [
                [None if value != value else round(value, 4) for value in (total / count).tolist()]
                for count, total in by_class
            ],
        }

    def _over_units(self, value_G: Tensor) -> float:
        sizes = self.gate.block_sizes.double().cpu()
        return float((value_G * sizes).sum() / sizes.sum())


def proxies(counter: MacCounter, openness: Mapping[str, Openness]) -> dict[str, float]:
    """ComputeProxy, RelMAC and RelMAC_fuse with alpha from p and from g, over the hidden layers (all but the last).

    An ungated hidden layer counts with alpha = 1; gates on input features have no term in the paper's sums, and neither
    have convolutions without gates on their channels.
    """
    layers: list[LayerMacs | ConvMacs] = [*counter.convs, *counter.layers]
    hidden = layers[:-1]
    found: dict[str, float] = {}
    for letter in ("p", "g"):
        alphas = []
        for layer in hidden:
            writers = [name for name, site in counter.sites.items() if layer.name in site.producers]
            name = next((w for w in writers if counter.saves_producers(w)), next(iter(writers), None))
            sums = openness[name] if name is not None else None
            alphas.append(1.0 if sums is None else sums.probability if letter == "p" else sums.open)
        weights = [layer.dense * layer.rows for layer in hidden]
        total = sum(weights) or 1.0
        found[f"compute_proxy_{letter}"] = sum(alphas) / len(alphas) if alphas else 1.0
        found[f"relmac_{letter}"] = sum(a * w for a, w in zip(alphas, weights, strict=True)) / total
        found[f"relmac_fuse_{letter}"] = (
            sum(a * w * layer.density for a, w, layer in zip(alphas, weights, hidden, strict=True)) / total
        )
    return found


def product_of_means(layer: LayerMacs | AttentionMacs | ConvMacs, openness: Mapping[str, Openness]) -> float:
    """MACs per sample that density x open rate of the inputs x open rate of the outputs would claim."""
    sides = [(side, side.site) for side in (layer.read, layer.written) if side.site is not None]
    return layer.present * layer.rows * math.prod(side.open_fraction(openness[site].open) for side, site in sides)


def where_products_mislead(
    counter: MacCounter, openness: Mapping[str, Openness], executed: Mapping[str, float]
) -> list[str]:
    """A sentence for each layer, and for the model, whose product of means is off from the MACs `executed`."""
    if counter.stages is not None:
        return []  # stages open one after the other: nobody would multiply their rates
    notes: list[str] = []
    claimed = {layer.name: product_of_means(layer, openness) for layer in counter.parts}
    for layer in counter.parts:
        claim, exact = claimed[layer.name], executed[layer.name]
        if _misleads(claim, exact):
            factors, kind = ("density x open rates", "masked and gated") if _masked(layer) else ("open rates", "gated")
            notes.append(
                f"{layer.name}: {factors} would claim {claim:,.0f} MACs, the {kind} layer executes {exact:,.0f}: "
                + _reason(layer, more=exact > claim)
            )
    fixed = counter.gate + counter.other
    claim, exact = sum(claimed.values()) + fixed, sum(executed.values()) + fixed
    if _misleads(claim, exact):
        factors = "density x open rates" if any(map(_masked, counter.parts)) else "open rates"
        notes.append(
            f"model: {factors} would claim {claim:,.0f} MACs, gate networks included, it executes {exact:,.0f}"
        )
    return notes


def _misleads(claim: float, exact: float) -> bool:
    return abs(claim - exact) > MISLEADING * exact


def _masked(layer: LayerMacs | AttentionMacs | ConvMacs) -> bool:
    return layer.present < layer.dense


def _reason(layer: LayerMacs | AttentionMacs | ConvMacs, *, more: bool) -> str:
    if not _masked(layer):
        return f"open inputs and open outputs meet {'more' if more else 'less'} often than by chance"
    if layer.read.gate is not None and layer.written.gate is not None:
        return f"open inputs and open outputs have {'more' if more else 'fewer'} connections in common than by chance"
    return f"open units keep {'more' if more else 'fewer'} connections than average"
