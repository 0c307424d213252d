"""Remove units that nothing reads, that are the same for every input, or that the caller gives up.

Units behind a dynamic gate are removed by whole blocks, and not at all where blocks compete (top-k, always open).
Shapes in names: N units, G blocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.cpu.folding import Affine, Stage, with_layer
from dynamicgate.ops.gate_net import NEAREST


@torch.no_grad()
def without_dead_units(stages: list[Stage], drop: Mapping[str, Tensor]) -> list[Stage]:
    """The same chain with fewer units. drop: by site, blocks to remove although some input might open them."""
    stages = list(stages)
    for i in range(len(stages) - 1, 0, -1):  # from the end: a unit that nothing reads need not read anything itself
        stages[i - 1], stages[i] = _remove_unread(stages[i - 1], stages[i], drop)
    for i in range(1, len(stages)):  # and from the start: a constant unit can make the next one constant
        stages[i - 1], stages[i] = _fold_constants(stages[i - 1], stages[i])
    return stages


def droppable(stage: Stage) -> bool:
    """Whether blocks behind its gate can be removed. Not where they compete: without one of them others would open."""
    return stage.layer.gate is not None and not stage.layer.gate.top_k


def _remove_unread(writer: Stage, reader: Stage, drop: Mapping[str, Tensor]) -> tuple[Stage, Stage]:
    read_N = (reader.layer.weight != 0).any(0)
    if reader.layer.gate is not None:
        read_N |= (reader.layer.gate.weights[0] != 0).any(0)
    block, gate = writer.layer.block, writer.layer.gate
    if not block:
        return _keep_units(writer, reader, read_N)
    if gate is None or not droppable(writer):
        return writer, reader
    blocks = torch.arange(len(read_N)) // block
    keep_G = torch.zeros(writer.layer.blocks, dtype=torch.bool).index_put((blocks,), read_N, accumulate=True)
    if gate.hidden == NEAREST:  # blocks that no context opens stay closed for every input
        keep_G &= (gate.weights[1] != 0).any(1)
    if writer.site is not None and writer.site in drop:
        keep_G &= ~drop[writer.site]
    if bool(keep_G.all()):
        return writer, reader
    if not bool(keep_G.any()):
        keep_G[0] = True  # a layer must have an output
    smaller_gate = replace(
        gate,
        weights=(*gate.weights[:-1], gate.weights[-1][keep_G]),
        biases=(*gate.biases[:-1], None if gate.biases[-1] is None else gate.biases[-1][keep_G]),
    )
    writer, reader = _keep_units(writer, reader, keep_G[blocks])
    return with_layer(writer, gate=smaller_gate), reader


def _fold_constants(writer: Stage, reader: Stage) -> tuple[Stage, Stage]:
    """A unit without inputs is act(bias) for every input: what it adds to the reader's sums goes into the biases."""
    layer = writer.layer
    if layer.block:
        return writer, reader
    constant_N = ~(layer.weight != 0).any(1)
    if not bool(constant_N.any()):
        return writer, reader
    bias_N = torch.zeros(len(constant_N)) if layer.bias is None else layer.bias
    value_N = ACTIVATIONS[layer.activation].function(bias_N.double()) * constant_N
    affine = Affine(None, value_N)
    _, bias = affine.fold(reader.layer.weight, reader.layer.bias)
    gate = None if reader.layer.gate is None else affine.fold_gate(reader.layer.gate)
    return _keep_units(writer, with_layer(reader, bias=bias, gate=gate), ~constant_N)


def _keep_units(writer: Stage, reader: Stage, keep_N: Tensor) -> tuple[Stage, Stage]:
    if bool(keep_N.all()):
        return writer, reader
    if not bool(keep_N.any()):
        keep_N = keep_N.clone()
        keep_N[0] = True
        zeroed = with_layer(writer, weight=torch.zeros_like(writer.layer.weight), bias=None, activation="identity")
        writer = zeroed if not writer.layer.block else writer
    gate = reader.layer.gate
    if gate is not None:
        gate = replace(gate, weights=(gate.weights[0][:, keep_N], *gate.weights[1:]))
    bias = writer.layer.bias
    return (
        with_layer(writer, weight=writer.layer.weight[keep_N], bias=None if bias is None else bias[keep_N]),
        with_layer(reader, weight=reader.layer.weight[:, keep_N], gate=gate),
    )
