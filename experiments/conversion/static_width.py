"""Width pruning: the same units are removed for every token, the least important first (as Minitron ranks them).

Shapes in names: B tokens, N units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.sites import Site
from dynamicgate.gating.unit_order import weight_of
from dynamicgate.hf.activity import observe
from experiments.conversion.models import linear


def importance(model: nn.Module, sites: Sequence[Site], batches: Sequence[Any]) -> dict[str, Tensor]:
    """The mean size of each unit times the norm of the weights that read it, by site."""
    sums = {site.name: torch.zeros(site.width, dtype=torch.float64) for site in sites}

    def see(site: Site, _x: Tensor, h_BN: Tensor) -> None:
        sums[site.name] += h_BN.float().abs().sum(0).double().cpu()

    observe(model, sites, batches, see)
    return {site.name: sums[site.name] * norms(model, site).double().cpu() for site in sites}


def norms(model: nn.Module, site: Site) -> Tensor:
    """The norm of the weights that read each unit."""
    return weight_of(model.get_submodule(site.consumer)).detach().float().norm(dim=0)


def most_important(scores: Mapping[str, Tensor], fraction: float) -> dict[str, Tensor]:
    """The units that stay, in the order they have: `fraction` of those of each site."""
    kept = {}
    for name, score_N in scores.items():
        count = max(1, round(fraction * len(score_N)))
        kept[name] = torch.sort(score_N, descending=True, stable=True).indices[:count].sort().values
    return kept


@torch.no_grad()
def remove_units_(model: nn.Module, sites: Sequence[Site], kept: Mapping[str, Tensor]) -> None:
    """Make the layers of every site as narrow as the units that stay, in place."""
    for site in sites:
        for name in site.producers:
            layer = linear(model, name)
            rows = kept[site.name].to(layer.weight.device)
            layer.weight = nn.Parameter(layer.weight[rows].clone())
            if layer.bias is not None:
                layer.bias = nn.Parameter(layer.bias[rows].clone())
            layer.out_features = len(rows)
        consumer = linear(model, site.consumer)
        columns = kept[site.name].to(consumer.weight.device)
        consumer.weight = nn.Parameter(consumer.weight[:, columns].clone())
        consumer.in_features = len(columns)
    config: Any = model.config
    config.intermediate_size = len(kept[sites[0].name])  # one number for all layers, which all lose as many
