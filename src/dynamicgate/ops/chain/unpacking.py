"""Turns a packed chain back into layers: the torch backend runs these, and they test `pack`."""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dynamicgate.activations import BY_CODE
from dynamicgate.ops.chain.layers import BY_INPUT, BY_UNIT, LAYOUTS, Layer
from dynamicgate.ops.chain.packing import (
    HEADER_WORDS,
    KINDS,
    LAYER_WORDS,
    LINEAR_WORDS,
    MAGIC,
    PANEL,
    Span,
    output_span,
    padded,
    whole,
)
from dynamicgate.ops.gate_net import NEAREST, NEAREST_CODE, GateNet


class PackedLinear(NamedTuple):
    """The words of one linear map, as `struct Linear` of csrc/program.h names them."""

    layout: int
    inputs: int
    units: int
    width: int
    weight: int
    bias: int
    lists: int
    activation: int
    skip_zeros: int

    @property
    def has_thresholds(self) -> bool:
        """Whether its inputs have thresholds."""
        return self.layout in BY_INPUT.values() or self.by_unit

    @property
    def by_unit(self) -> bool:
        """Whether the factors that its units are multiplied by have thresholds too."""
        return self.layout in BY_UNIT.values()

    @property
    def stored(self) -> str:
        """The layout that its weights are given in."""
        given = {code: layout for codes in (BY_INPUT, BY_UNIT) for layout, code in codes.items()}
        return given.get(self.layout) or LAYOUTS[self.layout]

    @property
    def places(self) -> int:
        """The weights of a unit, with zeros up to whole panels where they lie side by side."""
        return padded(self.inputs) if self.by_unit else self.inputs

    @property
    def held(self) -> int:
        """The weights of a map in panels, by input or by unit, in floats."""
        return self.width * self.places * KINDS[self.stored].itemsize // 4

    @property
    def thresholds(self) -> slice:
        """Where the thresholds of its inputs are among the weights: behind the biases and scales."""
        start = self.bias * PANEL + self.width * (2 if self.stored == "byte panels" else 1)
        return slice(start, start + self.inputs)

    @property
    def factor_thresholds(self) -> slice:
        """Where those of the factors are: behind the others."""
        start = self.thresholds.stop
        return slice(start, start + self.units)


def unpack(weights: Tensor, program: Tensor) -> list[Layer]:
    """The layers of a packed chain."""
    words = program[: HEADER_WORDS + LAYER_WORDS * int(program[1])].tolist() if program.numel() > 1 else [0]
    if words[0] != MAGIC or words[1] < 1 or words[5] != program.numel() or words[4] * PANEL != weights.numel():
        raise ValueError("weights and program must come from the same call of pack")
    before = whole(words[2])
    layers = []
    for i in range(words[1]):
        at = HEADER_WORDS + i * LAYER_WORDS
        parts = [PackedLinear(*words[at + j * LINEAR_WORDS : at + (j + 1) * LINEAR_WORDS]) for j in range(4)]
        stages, blocks, block, _, cut, top_k, *scale = words[at + 4 * LINEAR_WORDS : at + LAYER_WORDS]
        main, *gates, value = parts
        pairs = (main.layout, BY_UNIT[main.stored] if main.layout in BY_INPUT.values() else main.layout)
        if main.by_unit or (main.has_thresholds and blocks) or (value.units and value.layout not in pairs):
            raise ValueError("a layer has a layout that does not go with its gate or its value")
        layout = main.stored
        after = output_span(main.units, block if blocks else 0, layout)
        weight, bias = read_linear(weights, program, main, before, after)
        by_value = read_linear(weights, program, value, before, after) if value.units else (None, None)
        gate = None
        if stages:
            read, source = [], before
            for stage in gates[:stages]:
                read.append(read_linear(weights, program, stage, source, whole(stage.units)))
                source = whole(stage.units)
            tau, soft_width = map(_inverse, scale)
            gate = GateNet(
                weights=tuple(w for w, _ in read),
                biases=tuple(b for _, b in read),
                hidden=_hidden(gates[0].activation),
                cut=weights[cut * PANEL :][:blocks],
                top_k=top_k,
                tau=None if tau is None else abs(tau),
                soft_width=None if soft_width is None else abs(soft_width),
                competes=tau is not None and tau < 0.0,
                unbounded=soft_width is not None and soft_width < 0.0,
            )
        layers.append(
            Layer(
                weight,
                bias,
                BY_CODE[main.activation].name,
                block if blocks else 0,
                gate,
                layout,
                bool(main.skip_zeros),
                value_weight=by_value[0],
                value_bias=by_value[1],
                above=weights[main.thresholds] if main.has_thresholds else None,
                value_above=weights[value.thresholds] if value.units and value.has_thresholds else None,
                factors_above=weights[value.factor_thresholds] if value.units and value.by_unit else None,
            )
        )
        before = after
    return layers


def _hidden(code: int) -> str:
    return NEAREST if code == NEAREST_CODE else BY_CODE[code].name


def _inverse(word: int) -> float | None:
    """1 / the float with these bits; None for 0."""
    number = struct.unpack("f", struct.pack("i", word))[0]
    return 1.0 / number if number else None


def read_linear(
    weights: Tensor, program: Tensor, linear: PackedLinear, before: Span, after: Span
) -> tuple[Tensor, Tensor]:
    """Weight and bias of one linear map, as those of `nn.Linear`."""
    if min(linear) < 0 or linear.bias * PANEL + linear.width > len(weights):
        raise ValueError("a layer lies outside of the weights")
    floats = weights[linear.weight * PANEL :]
    bias = weights[linear.bias * PANEL :][: linear.width][after.positions]
    layout = linear.stored
    scale: Tensor | None = None
    if layout == "byte panels":
        if linear.bias * PANEL + 2 * linear.width > len(weights):
            raise ValueError("a layer lies outside of the weights")
        scale = weights[linear.bias * PANEL + linear.width :][: linear.width][after.positions, None]
    if layout in KINDS:
        floats, layout = floats.view(KINDS[layout]), "panels"
    if layout in ("panels", "rows") and linear.width * linear.places > len(floats):
        raise ValueError("the weights of a layer lie outside of the weights")
    if linear.has_thresholds:
        last = linear.factor_thresholds if linear.by_unit else linear.thresholds
        if before.gated or last.stop > len(weights):
            raise ValueError("the thresholds of a layer lie outside of the weights")
        weight = floats[: linear.width * linear.places]
        by_unit = weight.view(linear.width, -1) if linear.by_unit else weight.view(-1, linear.width).T
        weight = by_unit[:, : linear.inputs][after.positions].float()
        return weight if scale is None else weight * scale, bias
    if layout == "panels":
        pieces = floats[: linear.width * before.units].split(linear.width * before.block)
        rows = [p.reshape(linear.width // PANEL, -1, PANEL).transpose(1, 2).flatten(0, 1) for p in pieces]
        weight = torch.cat(rows, dim=1)[after.positions].float()
        return weight if scale is None else weight * scale, bias
    if layout == "rows":
        return floats[: linear.width * linear.inputs].view(linear.width, -1)[after.positions][:, before.positions], bias
    if layout == "columns":  # vectors over the whole input, padding included
        as_vectors = linear._replace(layout=LAYOUTS.index("vectors"))
        return read_linear(weights, program, as_vectors, whole(linear.inputs), after)[0][:, before.positions], bias
    panels = linear.width // PANEL
    by_input = layout == "vectors" and linear.skip_zeros
    groups = linear.width if layout == "csr" else linear.inputs if by_input else before.blocks * panels
    starts = program[linear.lists :][: groups + 1].long()
    shorts = program[linear.lists + groups + 1 :].numpy().view(np.uint16)[: int(starts[-1])]
    column = torch.from_numpy(shorts.astype(np.int64))
    group = torch.repeat_interleave(torch.arange(groups), starts.diff())
    dense = floats.new_zeros(linear.width, linear.inputs)
    if layout == "csr":
        dense[group, column] = floats[: column.numel()]
        return dense[after.positions][:, before.positions], bias
    panel, source = (column, group) if by_input else (group % panels, group // panels * before.block + column)
    dense_PDS = floats.new_zeros(panels, linear.inputs, PANEL)
    dense_PDS[panel, source] = floats[: column.numel() * PANEL].view(-1, PANEL)
    return dense_PDS.transpose(1, 2).flatten(0, 1)[after.positions], bias
