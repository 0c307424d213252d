"""What the plan says about a chain in stages: one line for every layer of every stage, and how many rows get there."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dynamicgate.gating.recording import usage
from dynamicgate.inference.cpu.breakdown import layout_words, regime_of
from dynamicgate.inference.cpu.choose import UNGATED, Chosen
from dynamicgate.inference.cpu.find import LinearChain
from dynamicgate.inference.cpu.stage_candidates import StagedCandidates
from dynamicgate.inference.plan import LayerPlan, Regime
from dynamicgate.masks import connections


@torch.no_grad()
def opened_stages(model: nn.Module, example: Tensor) -> list[float]:
    """The fraction of the example's rows that open each stage of the model."""
    with usage(model) as used:
        model(example)
        assert used.stages is not None
        return [float(part) for part in used.stages.open.flatten(0, -2).double().mean(0)]


def stage_note(chain: LinearChain, opened: Sequence[float]) -> str:
    """A sentence about how many rows open each stage."""
    parts = ", ".join(f"stage {k} {rate:.1%}" for k, rate in enumerate(opened, start=1))
    return f"stages from {chain.linears[0].name!r} to {chain.linears[-1].name!r}: rows of the example that open {parts}"


def staged_regimes(
    chain: LinearChain, candidates: StagedCandidates, chosen: Chosen, batches: Sequence[int], opened: Sequence[float]
) -> list[Regime]:
    """One regime for each batch size, one row in it for each layer of each stage.

    The layers of a stage cannot be timed alone: the time of the chain is divided in proportion to executed MACs, and
    that of the dense layers in proportion to their size.
    """
    names = [f"{step.name}, stage {k + 1}" for k in range(candidates.order.count) for step in chain.linears]
    parts = [layer for stage in candidates.staged.stages for layer in stage]
    shapes = [(layer.weight.shape[0], layer.weight.shape[1]) for layer in parts]
    macs = [count for of_stage in _macs(chain, opened) for count in of_stage]
    dense = [float(size) for of_stage in _dense_sizes(candidates) for size in of_stage]
    found = []
    for batch, index, times in zip(batches, chosen.choice, chosen.times, strict=True):
        candidate = chosen.candidates[index]
        layouts = candidate.layouts
        words = [candidate.name] * len(parts) if layouts is None else map(layout_words, parts, layouts)
        us = times[candidate.name], times[UNGATED]
        layers = [
            LayerPlan(name, shape, choice, us[1] * size / sum(dense), us[0] * of_part / max(sum(macs), 1.0), of_part)
            for name, shape, choice, size, of_part in zip(names, shapes, words, dense, macs, strict=True)
        ]
        found.append(regime_of(batch, layers, candidate.name, times))
    return found


def _macs(chain: LinearChain, opened: Sequence[float]) -> list[list[float]]:
    """By stage and layer the mean executed MACs of a row: existing connections, for the rows that get there. What it
    takes to decide is part of the outputs."""
    assert chain.stages is not None
    decide = chain.stages.head_macs
    found = [[0.0] * len(chain.linears) for _ in opened]
    for i, step in enumerate(chain.linears):
        linear = step.module
        assert isinstance(linear, nn.Linear)
        mask = connections(linear)
        exists = torch.ones_like(linear.weight, dtype=torch.bool) if mask is None else mask
        for rows, columns, k in chain.stages.regions(i, linear.weight.shape):
            found[k][i] = opened[k] * float(exists[rows, columns].sum())
    for k, rate in enumerate(opened):
        found[k][-1] += rate * decide[k]
    return found


def _dense_sizes(candidates: StagedCandidates) -> list[list[int]]:
    """By stage and layer the part of the dense layer that belongs to the units of that stage."""
    bounds = candidates.order.bounds
    shapes = [stage.shape for stage in candidates.lowered.stages]
    found = []
    for k in range(candidates.order.count):
        units = [of_layer[k + 1] - of_layer[k] for of_layer in bounds]
        hidden = [n * inputs for n, (_, inputs) in zip(units, shapes, strict=False)]
        found.append([*hidden, units[-1] * shapes[-1][0]])
    return found
