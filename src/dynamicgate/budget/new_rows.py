"""Gates on rows that training has not seen: a layer that was open there may be shut here.

Gate networks can learn training rows by heart. Then a layer that stayed above its floor in training is closed for new
rows, and one common shift of all logits, which calibration is, only opens the other layers further.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.budget.collapse import Collapse, Reading
from dynamicgate.data.contract import Inputs, call
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.modules import evaluating

MOST_LOST = 0.5  # a layer has come loose from its training if new rows open less than this fraction of what it had
RECENT = 0.05  # of training
MOST_EMPTY = 0.5  # of the rows: a layer in which so many open nothing answers them with a constant


def recent_rate(readings: Sequence[Reading]) -> float:
    """Mean open rate over the end of training: a single step may open more or less than the steps around it."""
    return fmean(one.g for one in readings if one.progress >= readings[-1].progress - RECENT)


class Opened(NamedTuple):
    """What new rows open of one site."""

    rate: float
    """Mean fraction of the blocks."""
    empty: float
    """Fraction of the rows that open none."""


@torch.no_grad()
def opened_by(model: nn.Module, inputs: list[Inputs]) -> dict[str, Opened]:
    """By site, what these rows open; routers, which always open k, are left out."""
    rows = _recorded(model, inputs, "open", [name for name, gate in named_gates(model).items() if _can_close(gate)])
    return {name: Opened(float(g.mean()), float((g.sum(-1) == 0).float().mean())) for name, g in rows.items()}


@torch.no_grad()
def restore_layers_(model: nn.Module, inputs: list[Inputs], trained: Mapping[str, float], floor: float) -> list[str]:
    """Shift the logits of each layer that new rows close, so that they open as much of it as training did; returns
    their names. One layer after the other: what a layer lets through is what the next one's gate reads."""
    gates, restored, opened = named_gates(model), list[str](), opened_by(model, inputs)
    for name, rate in trained.items():
        if name not in opened or opened[name].rate >= max(floor, MOST_LOST * rate):
            continue
        logits = _recorded(model, inputs, "logits", [name])[name].flatten().sort(descending=True).values
        count = min(len(logits) - 1, max(1, round(max(rate, floor) * len(logits))))
        between = (logits[count - 1] + logits[count]) / 2  # a gate at its threshold is closed
        gates[name].bias.sub_(between - gates[name].logit_threshold.to(between))
        restored.append(name)
        opened = opened_by(model, inputs)
    return restored


def closed_to_new_rows(opened: Mapping[str, Opened], floor: float) -> list[Collapse]:
    """A collapse for every layer that is shut for new rows, or for most of them."""
    found = []
    for site, (rate, empty) in opened.items():
        if rate >= floor and empty <= MOST_EMPTY:
            continue
        found.append(
            Collapse(
                "closed-to-new-rows",
                site,
                1.0,
                f"rows that training has not seen open {rate:.3f} of it, and {empty:.0%} of them nothing",
                "set always_open to half of the open rate, so that every row keeps some units; regularise more (weight "
                "decay, dropout), or take cheaper gates (a larger block, a smaller rank)",
            )
        )
    return found


def _can_close(gate: Gate) -> bool:
    return gate.config.kind != "router" and gate.config.top_k is None


def _recorded(model: nn.Module, inputs: list[Inputs], what: str, names: list[str]) -> dict[str, Tensor]:
    """A field of the decisions on all rows."""
    parts: dict[str, list[Tensor]] = {name: [] for name in names}
    with evaluating(model):
        for x in inputs:
            with usage(model) as used:
                call(model, x)
            for name in names:
                parts[name].append(getattr(used[name], what).flatten(0, -2))
    return {name: torch.cat(rows) for name, rows in parts.items()}
