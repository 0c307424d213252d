"""The ways to run a chain in stages: packed, so that rows stop early, or in torch, all stages for all rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dynamicgate import ops
from dynamicgate.inference.cpu.candidates import DENSE, Candidate, Candidates, LayerLayout, layouts_to_try
from dynamicgate.inference.cpu.dense_stages import DenseStages
from dynamicgate.inference.cpu.lower import Lowered
from dynamicgate.inference.cpu.stages import StageOrder


class StagedCandidates(Candidates):
    """Candidates with a layout for each layer of each stage: those of the first stage come first."""

    whole_stream = True

    def __init__(self, lowered: Lowered) -> None:
        """All of them compute what `lowered` says."""
        super().__init__(lowered)
        assert lowered.order is not None
        self.order: StageOrder = lowered.order
        self.staged = self.order.split(lowered.layers)

    def layouts_to_try(self, zeros: float) -> list[list[LayerLayout]]:
        """For each layer of each stage the layouts that may be fastest."""
        return [layouts for stage in self.staged.stages for layouts in layouts_to_try(stage, zeros)]

    def build_first(self, candidate: Candidate, count: int) -> nn.Module:
        """The whole chain, run that way: what a stage does before its last layer gives no outputs to stop at."""
        assert count == len(self.lowered.stages)
        if candidate.layouts is None:
            assert candidate == DENSE
            return self._in_torch()
        layouts = iter(candidate.layouts)
        stages = tuple(tuple(_laid_out(layer, next(layouts)) for layer in stage) for stage in self.staged.stages)
        return self._packed(ops.chain.pack_staged(replace(self.staged, stages=stages)))

    def _in_torch(self) -> DenseStages:
        layers = self.lowered.layers
        return DenseStages(
            [layer.weight for layer in layers],
            [layer.bias for layer in layers],
            self.order.heads,
            torch.tensor(self.order.cut),
            activations=[layer.activation for layer in layers],
            decide=self.order.decide,
            ends=self.order.bounds[-1][1:],
        )


def _laid_out(layer: ops.chain.Layer, layout: LayerLayout) -> ops.chain.Layer:
    return replace(layer, layout=layout.layout, skip_zeros=layout.skip_zeros)


def candidates_of(lowered: Lowered) -> Candidates:
    """The candidates of a chain, in stages or not."""
    return Candidates(lowered) if lowered.order is None else StagedCandidates(lowered)
