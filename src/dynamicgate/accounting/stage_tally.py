"""What a measurement says about stages: how often each opened, what it costs, and the accuracy-cost curve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.metrics import correlation
from dynamicgate.accounting.stage_costs import accuracy_cost_curve, cumulative_macs
from dynamicgate.gating.stages import StageDecision


class StageTally:
    """Scores, costs and hits of every row after every stage."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._scores: list[Tensor] = []
        self._macs: list[Tensor] = []
        self._open: list[Tensor] = []
        self._right: list[Tensor] = []

    def add(
        self, counter: MacCounter, decision: StageDecision, decisions: Mapping[str, Tensor], y: Tensor | None
    ) -> None:
        """Take in one batch: what was decided, the open gates on units, and the class labels if there are any."""
        rows = decision.open.shape[:-1].numel()
        self._scores.append(decision.score.detach().float().flatten(0, -2).cpu())
        self._open.append(decision.open.flatten(0, -2).cpu())
        self._macs.append(cumulative_macs(counter, decisions, rows).cpu())
        if y is not None and not y.is_floating_point() and decision.outputs[0].ndim == 2:
            right = torch.stack([z_BC.argmax(1) == y.to(z_BC.device) for z_BC in decision.outputs], dim=1)
            self._right.append(right.cpu())

    def result(self, dense: float, cut: Tensor) -> tuple[dict[str, Any] | None, list[dict[str, Any]]]:
        """The account of the stages, and the curve where there were class labels; None and nothing without stages."""
        if not self._open:
            return None, []
        open_BK, macs_BK, score_BK = torch.cat(self._open), torch.cat(self._macs), torch.cat(self._scores)
        found: dict[str, Any] = {
            "open": open_BK.double().mean(0).tolist(),
            "relative": (macs_BK.mean(0) / dense).tolist(),
            "cut": cut.tolist(),
        }
        if not self._right:
            return found, []
        right_BK, at_B = torch.cat(self._right), open_BK.sum(1, keepdim=True).long() - 1
        stopped = torch.bincount(at_B.flatten(), minlength=open_BK.shape[1]).double() / len(at_B)
        accuracy = right_BK.double().mean(0)
        wrong_B = ~right_BK.gather(1, at_B).flatten()
        cost_B = macs_BK.gather(1, at_B).flatten().double()
        found |= {
            "accuracy": accuracy.tolist(),
            "random": float((stopped * accuracy).sum()),
            "cost_error": correlation(cost_B, wrong_B.double()),
        }
        return found, accuracy_cost_curve(score_BK, macs_BK, right_BK, dense)
