"""Prune and grow where a keeper leaves it free: kept connections stay, and no kept unit gets a new one.

Densities and fractions are those of the free places alone. Shapes in names: O outputs, I inputs, P and Q rows and
columns of tiles, G groups of N tiles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from dynamicgate.masks import connections
from dynamicgate.modules import unwrap
from dynamicgate.sparsity.consolidation import AnyKeeper
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.patterns import Pattern
from dynamicgate.sparsity.regions import SparseRegion


def weight_name(layer: str) -> str:
    """What a keeper calls the weight of a layer; a model that is one layer has no name."""
    return f"{layer}.weight" if layer else "weight"


def free_places(layer: SparseLayer, keeper: AnyKeeper | None) -> Tensor | None:
    """Which connections of a layer may be pruned or grown; None: all of them."""
    kept = None if keeper is None else keeper.kept(weight_name(layer.name))
    return None if kept is None else ~kept.to(layer.mask.device)


def owned_places(name: str, keeper: AnyKeeper | None) -> Tensor | None:
    """Which connections of a layer belong to contexts, whether they exist or not; None: none of them."""
    return None if keeper is None else keeper.owned(weight_name(name))


def idle_places(layer: SparseLayer, keeper: AnyKeeper | None) -> Tensor | None:
    """Those that are nobody's and may not change now: they wait to be allotted. None: there are none."""
    if keeper is None or (kept := keeper.kept(weight_name(layer.name))) is None:
        return None
    owned = owned_places(layer.name, keeper)
    return (kept if owned is None else kept & ~owned).to(layer.mask.device)


def present(linear: nn.Linear) -> Tensor:
    """Which connections a layer has: all of them, where it is not sparse."""
    mask = connections(linear)
    return torch.ones_like(linear.weight, dtype=torch.bool) if mask is None else mask


def free_tiles(pattern: Pattern, free_OI: Tensor) -> Tensor:
    """The tiles in which every entry is free."""
    if pattern.rows == pattern.columns == 1:
        return free_OI
    return pattern.tile_sums((~free_OI).float()) == 0


def prune_and_regrow_free(
    pattern: Pattern,
    mask_OI: Tensor,
    keep_OI: Tensor,
    grow_OI: Tensor,
    fraction: float,
    density: float | None,
    free_OI: Tensor,
) -> Tensor:
    """As `prune_and_regrow`, among the free tiles: with a `density`, no more than this fraction of them is left."""
    active_PQ, free_PQ = pattern.active_tiles(mask_OI), free_tiles(pattern, free_OI)
    keep_PQ, grow_PQ = pattern.tile_sums(keep_OI), pattern.tile_sums(grow_OI)
    updated_PQ = active_PQ.clone()
    for part in pattern.groups(mask_OI.shape):
        active, free = pattern.competing(active_PQ[part]), pattern.competing(free_PQ[part])
        count_G, places_G = (active & free).sum(1), free.sum(1)
        left_G = count_G if density is None else torch.minimum(count_G, _rounded(density * places_G))
        k_G = torch.minimum((fraction * left_G).round().long(), places_G - count_G)
        weakest = pattern.competing(-keep_PQ[part]).masked_fill(~(active & free), -math.inf)
        grown = pattern.competing(grow_PQ[part]).masked_fill(active | ~free, -math.inf)
        now = (active & ~highest(weakest, k_G + count_G - left_G)) | highest(grown, k_G)
        updated_PQ[part] = now.reshape(updated_PQ[part].shape)
    return pattern.expand(updated_PQ, mask_OI.shape)


def keep_largest_free(pattern: Pattern, mask_OI: Tensor, weight_OI: Tensor, density: float, free_OI: Tensor) -> Tensor:
    """As `keep_largest`, among the free tiles."""
    nothing = torch.zeros_like(weight_OI)
    return prune_and_regrow_free(pattern, mask_OI, weight_OI.abs().float(), nothing, 0.0, density, free_OI)


def random_free(
    pattern: Pattern, mask_OI: Tensor, density: float, free_OI: Tensor, generator: torch.Generator
) -> Tensor:
    """The mask with its free tiles drawn anew at this density."""
    free_PQ = free_tiles(pattern, free_OI)
    drawn_PQ = torch.rand(free_PQ.shape, generator=generator).to(mask_OI.device)
    mask_PQ = pattern.active_tiles(mask_OI) & ~free_PQ
    for part in pattern.groups(mask_OI.shape):
        free = pattern.competing(free_PQ[part])
        chosen = highest(
            pattern.competing(drawn_PQ[part]).masked_fill(~free, -math.inf), _rounded(density * free.sum(1))
        )
        mask_PQ[part] |= chosen.reshape(mask_PQ[part].shape)
    return pattern.expand(mask_PQ, mask_OI.shape)


def check_keeper(keeper: AnyKeeper, model: nn.Module, regions: Mapping[str, Sequence[SparseRegion]]) -> None:
    """An error if a sparsifier cannot work with this keeper."""
    if keeper.model is not unwrap(model):
        raise ValueError("the keeper was made for another model: make both for the same one")
    if any(len(parts) > 1 for parts in regions.values()):
        raise ValueError("a keeper and stages do not go together: a stage reads the one before, whoever owns it")


def restart_layer_(layer: SparseLayer, keeper: AnyKeeper, generator: torch.Generator) -> None:
    """Draw connections and weights anew where they may change; what waits to be allotted has none."""
    free_OI, idle_OI = free_places(layer, keeper), idle_places(layer, keeper)
    free_OI = torch.ones_like(layer.mask) if free_OI is None else free_OI
    mask_OI = layer.mask if idle_OI is None else layer.mask & ~idle_OI
    mask_OI = random_free(layer.pattern, mask_OI, layer.regions[0].initial_density, free_OI, generator)
    draw_weights_(layer.linear, free_OI, generator)
    layer.weight.mul_(mask_OI)
    for linear in (layer.linear, *layer.tied):
        linear.mask.copy_(mask_OI)  # type: ignore[operator]
    layer.newly_grown = None
    keeper.forget_(weight_name(layer.name))


@torch.no_grad()
def draw_weights_(linear: nn.Linear, free_OI: Tensor, generator: torch.Generator) -> None:
    """New weights, as those of a new layer that has only the free inputs, where it is free."""
    inputs = max(1, int(free_OI.sum(1).max()))
    drawn_OI = (2.0 * torch.rand(free_OI.shape, generator=generator) - 1.0) / math.sqrt(inputs)
    linear.weight.copy_(torch.where(free_OI, drawn_OI.to(linear.weight), linear.weight))


def highest(scores_GN: Tensor, k_G: Tensor) -> Tensor:
    """A mask of the k largest of each row, with a k of its own for every row. Ties go to the lowest index."""
    chosen = torch.zeros_like(scores_GN, dtype=torch.bool)
    most = int(k_G.max()) if len(k_G) else 0
    if most <= 0:
        return chosen
    order_GN = scores_GN.argsort(dim=1, descending=True, stable=True)[:, :most]
    wanted_GN = torch.arange(most, device=scores_GN.device) < k_G[:, None]
    return chosen.scatter_(1, order_GN, wanted_GN)


def _rounded(count_G: Tensor) -> Tensor:
    """Whole numbers, and one at least where there is room for any."""
    return torch.where(count_G > 0, count_G.round().clamp(min=1), count_G.new_zeros(())).long()
