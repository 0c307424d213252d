"""What a row costs if it stops after each stage, and the accuracy-cost curve of a staged model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.linear import LayerMacs
from dynamicgate.gating.stages import STAGES

CURVE_POINTS = 25
ROUNDING = 1e-9  # relative: a target that was computed as a cost is that cost
Removed = Callable[[Any], Sequence[float]]


def cumulative_macs(
    counter: MacCounter, decisions: Mapping[str, Tensor], rows: int, removed: Removed | None = None
) -> Tensor:
    """MACs of each of `rows` rows if it stops after stage 1, 2, ..., everything counted: [rows, stages].

    decisions: of the gates on units. removed: connections of a layer that are still to be pruned, by stage.
    """
    stages = counter.stages
    assert stages is not None
    count, device = stages.count, stages.cut.device
    decisions = {name: g.flatten(0, -2) for name, g in decisions.items()}
    found = []
    for k in range(count):
        open_K = (torch.arange(count, device=device) <= k).float()
        now = {**decisions, STAGES: open_K.expand(rows, count)}
        total = torch.full((rows,), counter.gate + counter.other, dtype=torch.float64, device=device)
        for part in counter.parts:
            macs = part.executed(now).to(device)
            if removed is not None and isinstance(part, LayerMacs):
                macs = macs - sum(removed(part.linear)[: k + 1])  # a layer without stages has one entry
            total = total + macs * part.rows
        deciding = counter.deciding(now)
        found.append(total if deciding is None else total + deciding * counter.stage_rows)
    return torch.stack(found, dim=1)


def stage_macs(counter: MacCounter, removed: Removed | None = None) -> Tensor:
    """MACs per sample of stopping after each stage with all gates on units open."""
    ones = {name: torch.ones(1, gate.blocks, device=gate.tau.device) for name, gate in counter.gates.items()}
    return cumulative_macs(counter, ones, 1, removed)[0]


def opening_scores(score_BK: Tensor) -> Tensor:
    """The cut below which a row opens each further stage: a stage opens only if all before it do."""
    return score_BK.cummin(-1).values


def cut_for(score_BK: Tensor, macs_BK: Tensor, target: float) -> float:
    """The one cut with which rows of these scores and cumulative MACs execute `target` MACs on average, or as much of
    it as they can. Exact: the mean cost falls in steps as the cut passes the scores."""
    extra_BK = macs_BK.diff(dim=1).double()
    scores, order = opening_scores(score_BK).flatten().sort(descending=True)
    mean_macs = float(macs_BK[:, 0].double().mean()) + extra_BK.flatten()[order].cumsum(0) / len(score_BK)
    affordable = int((mean_macs <= target * (1.0 + ROUNDING)).sum())
    if affordable == 0:
        return float(scores[0]) if len(scores) else float("inf")
    if affordable == len(scores):
        return float("-inf")
    # Between the last score that opens and the first that does not, in the precision in which they are compared: of
    # two neighbours the middle is one of them, and must not be the upper one.
    last, first = scores[affordable - 1], scores[affordable]
    middle = ((last.double() + first.double()) / 2).to(scores.dtype)
    return float(middle if middle < last else first)


def accuracy_cost_curve(
    score_BK: Tensor, macs_BK: Tensor, right_BK: Tensor, dense: float, points: int = CURVE_POINTS
) -> list[dict[str, Any]]:
    """Accuracy against mean cost as the cut moves, from "all stop after stage 1" to "all open everything"."""
    least, most = float(macs_BK[:, 0].double().mean()), float(macs_BK[:, -1].double().mean())
    found = []
    for target in torch.linspace(least, most, points, dtype=torch.float64).tolist():
        cut = cut_for(score_BK, macs_BK, target)
        opens_BK = (opening_scores(score_BK) > cut).long()
        at_B = opens_BK.sum(1, keepdim=True)
        found.append(
            {
                "relative": float(macs_BK.gather(1, at_B).double().mean()) / dense,
                "accuracy": float(right_BK.gather(1, at_B).double().mean()),
                "cut": cut,
                "open": [1.0, *opens_BK.double().mean(0).tolist()],
            }
        )
    return found


def finite_cut(cut: Any) -> Any:
    """A cut, or a list of them, with None for one below or above all scores: JSON has no infinity."""
    if isinstance(cut, list):
        return [finite_cut(each) for each in cut]
    return cut if math.isfinite(cut) else None
