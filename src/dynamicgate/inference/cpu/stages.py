"""The order of stages in a chain: where its units are divided, and when a row stops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from dynamicgate import ops
from dynamicgate.gating.stages import StageGate


@dataclass(frozen=True)
class StageOrder:
    """What a stage gate decides, without its model."""

    bounds: tuple[tuple[int, ...], ...]
    """For each hidden layer where its stages begin and end."""
    cut: tuple[float, ...]
    decide: str
    heads: tuple[ops.chain.Head, ...] = ()

    @property
    def count(self) -> int:
        """The number of stages."""
        return len(self.bounds[0]) - 1

    def split(self, layers: Sequence[ops.chain.Layer]) -> ops.chain.Staged:
        """Whole layers as a chain in stages. No weight is copied."""
        stages = tuple(tuple(self._part(layers, i, k) for i in range(len(layers))) for k in range(self.count))
        return ops.chain.Staged(stages, self.cut, self.decide, self.heads)

    def _part(self, layers: Sequence[ops.chain.Layer], i: int, k: int) -> ops.chain.Layer:
        layer = layers[i]
        if i == len(self.bounds):  # the outputs: what the units of this stage add, and the bias once
            weight = layer.weight[:, self.bounds[-1][k] : self.bounds[-1][k + 1]]
            return replace(layer, weight=weight, bias=layer.bias if k == 0 else None)
        rows = slice(self.bounds[i][k], self.bounds[i][k + 1])
        weight = layer.weight[rows] if i == 0 else layer.weight[rows, : self.bounds[i - 1][k + 1]]
        return replace(layer, weight=weight, bias=None if layer.bias is None else layer.bias[rows])


@torch.no_grad()
def stage_order(gate: StageGate) -> StageOrder:
    """The order of a trained stage gate."""
    linears = [head for head in gate.heads if isinstance(head, nn.Linear)]
    heads = tuple(ops.chain.Head(head.weight.detach(), head.bias.detach()) for head in linears)
    return StageOrder(tuple(map(tuple, gate.bounds)), tuple(gate.cut.tolist()), gate.config.decide, heads)
