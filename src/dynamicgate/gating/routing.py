"""From a router's logits to experts: softmax, top-k, and the capacity of each expert (paper, sec 2.5 and 5.5).

Shapes in names: B rows of one forward pass (any leading dimensions), R the same rows flattened, G experts, which are
blocks of units. A row is a token, or a sample. An assignment is a row together with one of its top-k experts.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from dynamicgate.ops.gate_net import largest

DropPolicy = Literal["position", "random"]


def top_k_mask(p_BG: Tensor, k: int) -> Tensor:
    """1 for the k largest of each row, else 0; ties go to the lowest index, so the mask is a function of p."""
    return largest(p_BG, k).to(p_BG.dtype)


def route(z_BG: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities, the top-k experts of each row as 0 or 1, and the weights of their outputs."""
    p_BG = torch.softmax(z_BG, dim=-1)
    routed_BG = top_k_mask(p_BG.detach(), k)
    return p_BG, routed_BG, expert_weights(p_BG, routed_BG, k)


def expert_weights(p_BG: Tensor, routed_BG: Tensor, k: int) -> Tensor:
    """The weights of the outputs of the k experts that rows were routed to."""
    weight_BG = p_BG * routed_BG
    if k > 1:  # a single weight would be normalised to 1 whatever the logits, and the router would never learn
        weight_BG = weight_BG / weight_BG.sum(-1, keepdim=True)
    return weight_BG


def open_shares(z_BG: Tensor, open_BG: Tensor) -> Tensor:
    """The weights of open blocks: the softmax of their logits among themselves. They add up to 1, or to 0 where nothing
    is open. Closed blocks have weight 0 and no gradient. A NaN logit counts as open, so that the weights of its row are
    NaN, as they are in other gates: of weight 0 it would be hidden by all that skips closed blocks."""
    is_open_BG = (open_BG > 0) | z_BG.isnan()
    highest_B1 = z_BG.detach().masked_fill(~is_open_BG, -torch.inf).amax(-1, keepdim=True)
    below_BG = torch.where(is_open_BG, z_BG - highest_B1, 0.0)  # exp of a closed logit might be infinite
    weight_BG = below_BG.exp() * is_open_BG
    return weight_BG / weight_BG.sum(-1, keepdim=True).clamp_min(1.0)  # the largest is 1


def expert_capacity(rows: int, k: int, experts: int, factor: float) -> int:
    """How many rows one expert takes: the mean number of assignments per expert times `factor`, rounded up."""
    return max(1, math.ceil(factor * rows * k / experts - 1e-9))  # 1.1 * 80 / 8 is a little more than 11


def drop_over_capacity(routed_BG: Tensor, capacity: int, policy: DropPolicy) -> Tensor:
    """The assignments that are kept: at most `capacity` for each expert.

    policy: a full expert keeps its first rows in row order ("position"), or a random choice of them ("random").
    """
    routed_RG = routed_BG.flatten(0, -2)
    if policy == "position":
        kept_RG = routed_RG * (routed_RG.long().cumsum(0) <= capacity)
    else:
        order_RG = torch.rand_like(routed_RG).argsort(0)  # another order of the rows for each expert
        shuffled_RG = routed_RG.gather(0, order_RG)
        kept_in_order_RG = shuffled_RG * (shuffled_RG.long().cumsum(0) <= capacity)
        kept_RG = torch.zeros_like(routed_RG).scatter(0, order_RG, kept_in_order_RG)
    return kept_RG.reshape(routed_BG.shape)
