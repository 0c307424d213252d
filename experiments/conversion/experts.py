"""A dense feed-forward layer as a mixture of experts: units whose gate projections are alike become one expert.

Shapes in names: N units, D features, E experts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.gating.unit_order import permute_units_, weight_of

ROUNDS = 20


@torch.no_grad()
def to_experts_(model: nn.Module, sites: Sequence[Site], experts: int, ffn: float) -> int:
    """Cluster the units of every layer into experts of equal size and put a router in front, in place; returns how many
    experts a token uses: as many as make up `ffn` of a layer, the router not counted.

    The router scores an expert by the mean of the rows of its gate projections, which is the mean of what these give.
    Chosen experts add what they did in the dense layer; the score decides, and scales nothing.
    """
    top_k = max(1, round(ffn * experts))
    means = {}
    for site in sites:
        if site.width % experts:
            raise ValueError(f"{site.name} has {site.width} units: expected a multiple of {experts} experts")
        rows_ND = weight_of(model.get_submodule(site.source)).float().cpu()
        order = cluster_order(rows_ND, experts)
        means[site.name] = rows_ND[order].unflatten(0, (experts, -1)).mean(1)
        permute_units_(model, site, order)  # after the means: on a CPU these rows are the weights themselves
    (block,) = {site.width // experts for site in sites}
    gate_(model, GateConfig(block=block, net="linear", top_k=top_k), sites)
    for name, gate in named_gates(model).items():
        assert isinstance(gate.net, nn.Linear)
        gate.net.weight.copy_(means[name])
        gate.bias.zero_()
    return top_k


def cluster_order(rows_ND: Tensor, experts: int) -> Tensor:
    """An order of the units in which each expert is a run of equally many: k-means, then every unit to the nearest
    expert that still has room, the nearest pairs first."""
    generator = torch.Generator().manual_seed(0)
    centres_ED = rows_ND[torch.randperm(len(rows_ND), generator=generator)[:experts]]
    for _ in range(ROUNDS):
        nearest_N = torch.cdist(rows_ND, centres_ED).argmin(1)
        counts_E = torch.bincount(nearest_N, minlength=experts)
        sums_ED = torch.zeros_like(centres_ED).index_add_(0, nearest_N, rows_ND)
        centres_ED = torch.where(counts_E[:, None] > 0, sums_ED / counts_E.clamp_min(1)[:, None], centres_ED)
    return torch.argsort(_balanced(torch.cdist(rows_ND, centres_ED)), stable=True)


def _balanced(distances_NE: Tensor) -> Tensor:
    """The expert of each unit, equally many units for each."""
    units, experts = distances_NE.shape
    room = [math.ceil(units / experts)] * experts
    chosen = [-1] * units
    for pair in torch.argsort(distances_NE.flatten(), stable=True).tolist():
        unit, expert = divmod(pair, experts)
        if chosen[unit] < 0 and room[expert]:
            chosen[unit] = expert
            room[expert] -= 1
    return torch.tensor(chosen)
