"""A mixture of experts whose router is a ReLU: an expert is open where its score is positive, and multiplied by it.

How many are open is held to a rate by an L1 penalty on the scores whose weight grows while too many are open and
shrinks while too few are; experts that are open more often than others pay more. A control for gates with a budget:
also open by the input, but with one rate for all layers together, and no steering of thresholds.

Shapes in names: B rows (any leading dimensions), D features, N units, G blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.gating.gate import scale_units
from dynamicgate.nn import FFN

GROWTH = 1.2  # of the weight of the penalty, each step
FIRST_WEIGHT = 1e-8


class ReluRouter(nn.Module):
    """Scores of the blocks of a feed-forward layer, applied to its hidden units by two hooks."""

    def __init__(self, features: int, blocks: int, block: int) -> None:
        """`blocks` blocks of `block` units."""
        super().__init__()
        self.net, self.block = nn.Linear(features, blocks, bias=False), block
        self.scores_BG: Tensor | None = None

    def decide_before(self, _up: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of the projection up."""
        self.scores_BG = F.relu(self.net(args[0]).float())

    def scale_before(self, _down: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook of the projection down."""
        assert self.scores_BG is not None
        return (scale_units(args[0], self.scores_BG, self.block), *args[1:])


@dataclass
class ReluRouterBudget:
    """Holds the mean rate of open blocks to `rate`."""

    rate: float
    weight: float = FIRST_WEIGHT
    opened: float = 1.0
    routers: list[ReluRouter] = field(default_factory=list, repr=False)

    def attach_(self, model: nn.Module, block: int) -> None:
        """Put a router on every feed-forward layer of `model`."""
        for ffn in [module for module in model.modules() if isinstance(module, FFN)]:
            router = ReluRouter(ffn.up.in_features, -(-ffn.up.out_features // block), block).to(ffn.up.weight.device)
            ffn.router = router
            ffn.up.register_forward_pre_hook(router.decide_before)
            ffn.down.register_forward_pre_hook(router.scale_before)
            self.routers.append(router)

    def rates(self) -> list[Tensor]:
        """Open blocks of each layer in the last forward pass."""
        return open_rates(self.routers)

    def penalty(self) -> Tensor:
        """What to add to the task loss, once for each step."""
        scores = [router.scores_BG for router in self.routers if router.scores_BG is not None]
        self.opened = float(torch.stack(self.rates()).mean())
        self.weight *= GROWTH if self.opened > self.rate else 1.0 / GROWTH
        return self.weight * torch.stack([_balanced_sum(one, self.rate) for one in scores]).mean()

    def state_dict(self) -> dict[str, float]:
        """The weight, to continue with."""
        return {"weight": self.weight, "opened": self.opened}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Continue where `state_dict` was taken."""
        self.weight, self.opened = state["weight"], state["opened"]


def routers_of(model: nn.Module) -> list[ReluRouter]:
    """The routers of a model, from the first layer to the last."""
    return [module for module in model.modules() if isinstance(module, ReluRouter)]


def open_rates(routers: Sequence[ReluRouter]) -> list[Tensor]:
    """Open blocks of each layer in the last forward pass."""
    return [(router.scores_BG > 0).float().mean() for router in routers if router.scores_BG is not None]


def _balanced_sum(scores_BG: Tensor, rate: float) -> Tensor:
    """The sum of the scores of a row, in the mean over rows, each score times how often its expert is open relative to
    the rate that is asked for: experts, and whole layers, that are open more often pay more."""
    scores_RG = scores_BG.flatten(0, -2)
    opened_G = (scores_RG.detach() > 0).float().mean(0)
    return (scores_RG.mean(0) * opened_G / rate).sum()
