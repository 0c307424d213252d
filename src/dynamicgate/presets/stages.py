"""How a budget is divided over stages: what each may cost, how many units it has, how dense its layers are.

The plans were found on validation rows of seven datasets: docs/stages.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from dynamicgate.choices import PlanName as PlanName
from dynamicgate.gating.attach import gate_
from dynamicgate.gating.config import Decide, GateConfig
from dynamicgate.gating.stages import StageGate, stack_names, stages_of
from dynamicgate.sparsity import RigL, densities
from dynamicgate.training.stage_loss import StageLoss

INITIAL_DENSITY = 1.0  # start dense: which connections to keep is then learned
MOST_FOR_OUTPUT = 0.5  # of a stage's MACs: what it adds to the outputs stays dense where it takes no more than that


class StagePlan(NamedTuple):
    """What each stage costs relative to the budget, and how much later stages attend to the rows that open them."""

    costs: tuple[float, ...]
    focus: float

    @property
    def loss(self) -> StageLoss:
        """The loss that stages of this plan are trained with."""
        return StageLoss(focus=self.focus)


PLANS: dict[PlanName, StagePlan] = {
    "two": StagePlan((0.75, 1.0), 0.0),  # a quarter of the rows opens the second: for inputs that are all rather hard
    "three": StagePlan((0.4, 1.0, 2.5), 1.0),  # a third opens the second, a tenth the third: most inputs are easy
}


def stage_costs(plan: StagePlan, budget: float) -> tuple[float, ...]:
    """The cost of each stage relative to dense. All stages together cost no more than the dense network."""
    costs = [share * budget for share in plan.costs]
    over = sum(costs) - 1.0
    if over > 0.0:
        costs[-1] = max(costs[-1] - over, 0.0)
    if costs[-1] <= 0.0:
        raise ValueError(f"a budget of {budget:g} pays for all stages of every input: stages would save nothing")
    return tuple(costs)


def stage_sizes(costs: Sequence[float]) -> tuple[float, ...]:
    """Fractions of the units: a stage of four times the cost has twice the units, and is denser as well."""
    roots = [math.sqrt(cost) for cost in costs]
    return tuple(root / sum(roots) for root in roots)


def add_stages_(
    model: nn.Module,
    macs: Sequence[float],
    *,
    decide: Decide = "margin",
    initial_density: float = INITIAL_DENSITY,
    **rest: Any,
) -> RigL:
    """Put stages on a model that cost `macs` MACs each once it is trained; returns the sparsifier that sees to it."""
    gate_(model, GateConfig(kind="stages", stages=stage_sizes(macs), decide=decide))
    gate = stages_of(model)
    assert gate is not None
    found = stage_densities(model, gate, macs)
    return RigL(model, found, initial_density=dict.fromkeys(found, initial_density), **rest)


def stage_densities(model: nn.Module, gate: StageGate, macs: Sequence[float]) -> dict[str, tuple[float, ...]]:
    """By layer the density of each stage, so that the stages cost `macs`: what a stage adds to the outputs is dense
    where that is affordable, and the rest is distributed over its hidden layers as by Erdos-Renyi-Kernel."""
    names = stack_names(model, gate)
    weights = [model.get_submodule(name).weight for name in names]
    shapes = [
        [_shape(region.rows, region.columns) for region in gate.regions(i, weight.shape)]  # type: ignore[arg-type]
        for i, weight in enumerate(weights)
    ]
    found: dict[str, list[float]] = {name: [] for name in names}
    for k, affordable in enumerate(macs):
        output = shapes[-1][k].numel()
        for_output = min(output, MOST_FOR_OUTPUT * affordable)
        hidden = {name: shape[k] for name, shape in zip(names[:-1], shapes, strict=False)}
        total = sum(shape.numel() for shape in hidden.values())
        each = densities(hidden, min(1.0, (affordable - for_output) / total), "erk")
        for name, density in each.items():
            found[name].append(density)
        found[names[-1]].append(for_output / output)
    if min(found[names[-1]]) == 1.0:
        del found[names[-1]]  # dense: nothing to prune
    return {name: tuple(values) for name, values in found.items()}


def _shape(rows: slice, columns: slice) -> torch.Size:
    return torch.Size((rows.stop - rows.start, columns.stop - columns.start))
