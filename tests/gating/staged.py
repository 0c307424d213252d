"""Staged models, and what they must compute: the network cut to the units of its first stages, in float64."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

import dynamicgate as dg
from dynamicgate.gating.stages import StageGate, stages_of

STAGES = (0.25, 0.25, 0.5)


def sequential(sizes: Sequence[int] = (5, 13, 9, 3), *, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def stage(model: nn.Module, stages: tuple[float, ...] | None = STAGES, **config: Any) -> nn.Module:
    return dg.gate_(model, dg.GateConfig(kind="stages", stages=stages, **config))


def staged(sizes: Sequence[int] = (5, 13, 9, 3), *, seed: int = 0, **config: Any) -> nn.Module:
    return stage(sequential(sizes, seed=seed), **config)


def the_gate(model: nn.Module) -> StageGate:
    gate = stages_of(model)
    assert gate is not None
    return gate


def linears_of(model: nn.Module) -> list[nn.Linear]:
    """The layers of the base model, in order."""
    inside = {id(m) for m in the_gate(model).modules()}
    gates = {id(m) for gate in dg.named_gates(model).values() for m in gate.modules()}
    return [m for m in model.modules() if isinstance(m, nn.Linear) and id(m) not in inside | gates]


def cut_network(model: nn.Module, x: Tensor, stage: int, act: Any = torch.tanh) -> tuple[Tensor, Tensor]:
    """What the units of stages 1 to `stage` compute on their own, in float64: the last hidden units and the outputs."""
    linears, gate = linears_of(model), the_gate(model)
    h = x.double()
    for i, linear in enumerate(linears):
        rows = gate.bounds[i][stage] if i < len(gate.bounds) else linear.out_features
        read = gate.bounds[i - 1][stage] if i else linear.in_features
        last = h
        h = h @ linear.weight.detach().double()[:rows, :read].T + linear.bias.detach().double()[:rows]
        h = act(h) if i + 1 < len(linears) else h
    return last, h


def score_by_hand(model: nn.Module, z: Tensor, h: Tensor, stage: int) -> Tensor:
    """How much each row needs another stage after `stage`, in float64."""
    decide = the_gate(model).config.decide
    if decide == "head":
        head: Any = the_gate(model).heads[stage - 1]
        return h @ head.weight.detach().double()[0] + head.bias.detach().double()[0]
    if decide == "entropy":
        p = z.softmax(1)
        return -(p * p.log()).sum(1)
    ordered = z.sort(dim=1, descending=True).values
    return ordered[:, 1] - ordered[:, 0]


def by_hand(model: nn.Module, x: Tensor, act: Any = torch.tanh) -> tuple[Tensor, list[int]]:
    """The outputs of each row and the stage at which it stops, counted from 1, one row after the other."""
    gate = the_gate(model)
    outputs, stops = [], []
    for row in x.split(1):
        for k in range(1, gate.count + 1):
            h, z = cut_network(model, row, k, act)
            if k == gate.count or float(score_by_hand(model, z, h, k)) <= float(gate.cut[k - 1]):
                break
        outputs.append(z)
        stops.append(k)
    return torch.cat(outputs), stops


def middle_cuts_(model: nn.Module, x: Tensor, act: Any = torch.tanh) -> None:
    """Put the cut of each stage at the median score, so that rows stop everywhere."""
    gate = the_gate(model)
    for k in range(1, gate.count):
        h, z = cut_network(model, x, k, act)
        scores = score_by_hand(model, z, h, k).sort().values
        gate.cut[k - 1] = float(scores[len(scores) // 2 - 1 : len(scores) // 2 + 1].mean())
