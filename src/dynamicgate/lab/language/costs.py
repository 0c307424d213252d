"""What a model executes for a token, in inference and in training."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.counter import deployed
from dynamicgate.gating.recording import Usage
from dynamicgate.lab.language.ffn_methods import Prepared
from dynamicgate.lab.language.relu_router import ReluRouterBudget


@dataclass(frozen=True)
class Costs:
    """The MACs of a token in a model, given which blocks are open. Attention over a full window is included."""

    prepared: Prepared

    @property
    def tokens(self) -> int:
        """Tokens of a counted sample."""
        return self.prepared.model.config.context

    @property
    def dense(self) -> float:
        """MACs of a token in the model without gates, routers or masks."""
        return (self.prepared.counter.dense - self._relu_routers * self.tokens) / self.tokens

    @property
    def deciding(self) -> float:
        """MACs of a token in gate networks and routers."""
        return self.prepared.counter.gate / self.tokens + self._relu_routers

    @property
    def _relu_routers(self) -> int:
        budget = self.prepared.budget
        routers = budget.routers if isinstance(budget, ReluRouterBudget) else []
        return sum(router.net.weight.numel() for router in routers)

    def executed(self, used: Usage) -> Tensor:
        """Mean MACs of a token in this forward pass."""
        counter, budget = self.prepared.counter, self.prepared.budget
        total = counter.executed(deployed(counter.gates, used)) / self.tokens
        if isinstance(budget, ReluRouterBudget):
            config = self.prepared.model.config
            total = total - sum((1.0 - rate) * 2 * config.features * config.width for rate in budget.rates())
        return total

    def closed(self, used: Usage) -> Tensor | float:
        """MACs of a token in closed blocks of feed-forward layers."""
        config = self.prepared.model.config
        return sum((1.0 - rate) * 2 * config.features * config.width for rate in used.mean_open().values())


@dataclass
class TrainingCost:
    """MACs of training, added up. A step costs its forward pass three times: once forward, twice backward. The exact
    gradient of gates also needs what closed blocks would have added: their projections up, and the gradient of the
    projections down."""

    costs: Costs
    exact: bool
    executed: float = 0.0
    _now: list[Tensor] = field(default_factory=list)

    @torch.no_grad()
    def add(self, used: Usage, tokens: int) -> None:
        """Count one step; nothing is transferred from a GPU until the total is asked for."""
        macs = 3.0 * self.costs.executed(used) + (self.costs.closed(used) if self.exact and len(used) else 0.0)
        self._now.append(torch.as_tensor(macs, dtype=torch.float64) * tokens)

    @property
    def total(self) -> float:
        """All MACs so far."""
        if self._now:
            self.executed += float(torch.stack([one.double().cpu() for one in self._now]).sum())
            self._now.clear()
        return self.executed


def model_costs(costs: Costs, executed: float) -> dict[str, Any]:
    """The MACs of a token as a run stores them."""
    return {
        "dense": costs.dense, "executed": executed, "relative": executed / costs.dense, "gate": costs.deciding,
    }  # fmt: skip
