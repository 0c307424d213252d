"""From a router's logits to experts: softmax, the k most probable, and the places that each expert has (sec 2.5, 5.5).

Shapes in names: B rows of one forward pass (any leading dimensions), G experts, which are blocks of units.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

Overflow = Literal["first", "random"]


def top_k_mask(p_BG: Tensor, k: int) -> Tensor:
    """1 for the k largest of each row, else 0; ties go to the lowest index, so the mask is a function of p."""
    first_k = p_BG.sort(dim=-1, descending=True, stable=True).indices[..., :k]
    return torch.zeros_like(p_BG).scatter(-1, first_k, 1.0)


def route(z_BG: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, the k experts that each row asks for, and the weights with which these would answer."""
    p_BG = torch.softmax(z_BG, dim=-1)
    routed_BG = top_k_mask(p_BG.detach(), k)
    weight_BG = p_BG * routed_BG
    if k > 1:  # one weight renormalised would be 1 whatever the logits, and the router would never learn
        weight_BG = weight_BG / weight_BG.sum(-1, keepdim=True)
    return p_BG, routed_BG, weight_BG


def places_of(rows: int, k: int, experts: int, factor: float) -> int:
    """How many rows one expert takes: its even share of the assignments times `factor`, rounded up."""
    return max(1, math.ceil(factor * rows * k / experts - 1e-9))  # 1.1 * 80 / 8 is a little more than 11


def keep_places(routed_BG: Tensor, places: int, overflow: Overflow) -> Tensor:
    """The assignments that fit: of those that ask for an expert the "first" ones in row order, or "random" ones."""
    routed_RG = routed_BG.flatten(0, -2)
    if overflow == "first":
        kept_RG = routed_RG * (routed_RG.long().cumsum(0) <= places)
    else:
        turn_RG = torch.rand_like(routed_RG).argsort(0)  # for each expert another order of the rows
        in_turn_RG = routed_RG.gather(0, turn_RG)
        kept_RG = torch.zeros_like(routed_RG).scatter(0, turn_RG, in_turn_RG * (in_turn_RG.long().cumsum(0) <= places))
    return kept_RG.reshape(routed_BG.shape)
