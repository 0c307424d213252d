"""Packs layers into two flat tensors, weights and program. Its words are those of csrc/program.h: change both together.

Packing is plain torch and happens once. `unpack` turns the tensors back into layers, which the torch backend runs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.ops.chain.layers import BY_INPUT, BY_UNIT, LAYOUTS, Layer, check_layers
from dynamicgate.ops.chain.rounding import bytes_of, scales_of
from dynamicgate.ops.gate_net import code_of

PANEL = 16  # outputs side by side
KINDS = {"panels": torch.float32, "half panels": torch.bfloat16, "byte panels": torch.int8}  # of a weight in panels
MAGIC = 0x44470003
HEADER_WORDS, LINEAR_WORDS, LAYER_WORDS = 8, 9, 44
INDEX_LIMIT = 1 << 16  # indices take two bytes
# The cost of one weight relative to one in a panel (measured: 0.175 of dense at density 0.05, for 1 and 256 rows).
CSR_COST, VECTOR_COST = 3.5, 1.2
DOT_OUTPUTS = 8  # a gate with up to this many outputs is faster as rows than as a panel padded to 16 (8.4 -> 13.6 x)


class Packed(NamedTuple):
    """A chain that is ready for `run`: float32 weights, int32 program, and the number of outputs."""

    weights: Tensor
    program: Tensor
    outputs: int


class Span(NamedTuple):
    """How the features between two layers lie in memory: `block` units in every `stride` positions, `units` in all."""

    units: int
    block: int
    stride: int
    gated: bool

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.units // self.block)

    @property
    def positions(self) -> Tensor:
        """The position of each unit."""
        unit = torch.arange(self.units)
        return unit // self.block * self.stride + unit % self.block

    @property
    def width(self) -> int:
        """The number of positions up to the end of the last block."""
        return self.units if self.stride == self.block else self.blocks * self.stride


def whole(units: int) -> Span:
    """Features that are not gated: one block."""
    return Span(units, units, units, gated=False)


def output_span(units: int, block: int, layout: str) -> Span:
    """Panels must not cross the boundary of a block, so blocks are padded to whole panels. Rows need no padding."""
    if not block:
        return whole(units)
    by_panel = layout not in ("rows", "csr")
    return Span(units, block, padded(block) if by_panel else block, gated=True)


class Writer:
    """Collects what will be written, each piece starting on a new cache line, and the index words.

    The floats are written at the end, into one tensor: a list of finished pieces would be a second copy of the weights.
    """

    def __init__(self, words_before_index: int) -> None:
        """Nothing yet; the index lists will follow this many words."""
        self.pieces: list[tuple[int, int, Callable[[Tensor], object]]] = []
        self.lines = 0
        self.index: list[Tensor] = []
        self.words = words_before_index

    def add(self, count: int, fill: Callable[[Tensor], object]) -> int:
        """Room for `count` floats, which `fill` will write; returns where it starts, in units of 16."""
        at, self.lines = self.lines, self.lines - (-count // PANEL)
        self.pieces.append((at * PANEL, count, fill))
        return at

    def floats(self, out: Tensor | None = None) -> Tensor:
        """All floats, each piece padded with zeros, in `out` where it is given."""
        out = torch.empty(self.lines * PANEL, dtype=torch.float32) if out is None else out
        for at, count, fill in self.pieces:
            fill(out[at : at + count])
            out[at + count : at + padded(count)] = 0.0
        return out

    def add_index(self, starts: Tensor, index: Tensor) -> int:
        """Adds the start of each list and the lists themselves; returns the word where they start."""
        shorts = np.ascontiguousarray(F.pad(index, (0, index.numel() % 2)).numpy().astype(np.uint16))
        words = torch.cat((starts.to(torch.int32), torch.from_numpy(shorts.view(np.int32).copy())))
        at, self.words = self.words, self.words + words.numel()
        self.index.append(words)
        return at


def pack(layers: Sequence[Layer]) -> Packed:
    """Lay out a chain for the kernels."""
    writer, program = lay_out(layers)
    return Packed(writer.floats(), program, int(program[3]))


def lay_out(layers: Sequence[Layer]) -> tuple[Writer, Tensor]:
    """What `pack` writes, with the weights not yet written, and the program."""
    layers = list(layers)
    check_layers(layers)
    writer = Writer(HEADER_WORDS + LAYER_WORDS * len(layers))
    words: list[int] = []
    before = whole(layers[0].weight.shape[1])
    for layer in layers:
        after = output_span(layer.weight.shape[0], layer.block, layer.layout)
        held = (layer.weight, layer.bias, layer.activation, layer.layout)
        words += write_linear(writer, *held, before, after, layer.skip_zeros, layer.above)
        words += _value_and_gate(writer, layer, before, after)
        before = after
    outputs = layers[-1].weight.shape[0]
    inputs = layers[0].weight.shape[1]
    head = [MAGIC, len(layers), inputs, outputs, writer.lines, writer.words, 0, 0]
    return writer, torch.cat((torch.tensor(head + words, dtype=torch.int32), *writer.index))


def _value_and_gate(writer: Writer, layer: Layer, before: Span, after: Span) -> list[int]:
    gate = layer.gate
    value = [0] * LINEAR_WORDS
    if layer.value_weight is not None:
        held = (layer.value_weight, layer.value_bias, "identity", layer.layout)
        value = write_linear(writer, *held, before, after, False, layer.value_above, layer.factors_above)
    if gate is None:
        return [0] * (2 * LINEAR_WORDS) + value + [0, layer.blocks, after.block, after.stride, 0, 0, 0, 0]
    words: list[int] = []
    source = before
    for i, (weight, bias) in enumerate(zip(gate.weights, gate.biases, strict=True)):
        outputs = weight.shape[0]
        layout = gate_layout(weight, source) if i == 0 else "rows" if outputs <= DOT_OUTPUTS else "panels"
        activation = gate.hidden if i + 1 < len(gate.weights) else "identity"
        words += write_linear(writer, weight, bias, activation, layout, source, whole(outputs), False)
        source = whole(outputs)
    words += [0] * (LINEAR_WORDS * (2 - len(gate.weights))) + value
    cut = torch.as_tensor(gate.cut, dtype=torch.float32).expand(gate.blocks)
    words += [len(gate.weights), gate.blocks, after.block, after.stride]
    tau = -gate.tau if gate.competes and gate.tau is not None else gate.tau
    width = -gate.soft_width if gate.unbounded and gate.soft_width is not None else gate.soft_width
    words += [writer.add(gate.blocks, _copy_of(cut)), gate.top_k, _inverse(tau), _inverse(width)]
    return words


def _inverse(number: float | None) -> int:
    """The bits of 1 / number as a float; those of 0 for None."""
    return int(struct.unpack("i", struct.pack("f", 0.0 if number is None else 1.0 / number))[0])


def gate_layout(weight_GD: Tensor, before: Span) -> str:
    """The fastest layout for the first map of a gate network, by the cost of a weight in each layout."""
    outputs, inputs = weight_GD.shape
    columns = columns_of_16(weight_GD).sum()
    cost = {"panels": float(padded(outputs) * inputs)}
    if outputs <= DOT_OUTPUTS and not before.gated:  # a gated input is read block by block, which rows cannot
        cost["rows"] = float(outputs * inputs)
    if before.width <= INDEX_LIMIT:
        cost["columns" if before.gated else "vectors"] = VECTOR_COST * PANEL * float(columns)
        cost["csr"] = CSR_COST * float(weight_GD.count_nonzero())
    return min(cost, key=lambda layout: cost[layout])


def write_linear(
    writer: Writer, weight_ND: Tensor, bias_N: Tensor | None, activation: str, layout: str, before: Span, after: Span,
    skip_zeros: bool, above_D: Tensor | None = None, factors_above_N: Tensor | None = None,
) -> list[int]:  # fmt: skip
    """Write one linear map and return its words. above_D, factors_above_N: see `Layer`."""
    width = padded(after.width)
    weight_ND = weight_ND.detach()
    index = 0
    scale_N: Tensor | None = None
    inputs = weight_ND.shape[1]
    through = layout in ("csr", "columns")  # these read closed blocks as well
    indexed = before.block if layout == "vectors" else before.width if through else inputs if skip_zeros else 0
    if indexed > INDEX_LIMIT:
        raise ValueError(
            f"indices of {layout} reach {INDEX_LIMIT} inputs, received {indexed}, padding of blocks included"
        )
    put = panels if above_D is None else by_input if factors_above_N is None else by_unit
    room = width * (inputs if factors_above_N is None else padded(inputs))
    if layout == "panels":
        at = writer.add(room, lambda out: put(_spread(weight_ND, 0, after, width), before, out))
    elif layout == "half panels":

        def halves(out: Tensor) -> None:
            put(_spread(weight_ND.to(torch.bfloat16), 0, after, width), before, out.view(torch.bfloat16))

        at = writer.add(room // 2, halves)
    elif layout == "byte panels":
        scale_N = scale = scales_of(weight_ND)

        def whole_numbers(out: Tensor) -> None:
            spread_WD = _spread(bytes_of(weight_ND, scale), 0, after, width)
            put(spread_WD, before, out.view(torch.int8)[:room])

        at = writer.add(-(-room // 4), whole_numbers)
    elif layout == "vectors":
        spread_WD = _spread(weight_ND, 0, after, width)
        values, starts, columns = vectors_by_input(spread_WD) if skip_zeros else vectors(spread_WD, before.block)
        at, index = writer.add(values.numel(), _copy_of(values)), writer.add_index(starts, columns)
    else:
        inputs = before.width

        def spread() -> Tensor:
            return _spread(_spread(weight_ND, 0, after, width), 1, before, before.width)

        if layout == "rows":
            at = writer.add(width * inputs, lambda out: out.view(width, inputs).copy_(spread()))
        else:
            values, starts, columns = csr(spread()) if layout == "csr" else vectors(spread(), inputs)
            at, index = writer.add(values.numel(), _copy_of(values)), writer.add_index(starts, columns)
    bias_W = torch.zeros(width, dtype=torch.float32)
    if bias_N is not None:
        bias_W[after.positions] = bias_N.detach().to(torch.float32)
    if scale_N is not None:
        bias_W = torch.cat((bias_W, _spread(scale_N, 0, after, width)))
    if above_D is not None:
        bias_W = torch.cat((bias_W, above_D.detach().float()))
    if factors_above_N is not None:
        bias_W = torch.cat((bias_W, _spread(factors_above_N.detach().float(), 0, after, width)))
    kind = LAYOUTS.index(layout)
    if above_D is not None:
        kind = (BY_INPUT if factors_above_N is None else BY_UNIT)[layout]
    bias = writer.add(len(bias_W), _copy_of(bias_W))
    return [kind, inputs, after.units, width, at, bias, index, code_of(activation), int(skip_zeros)]


def columns_of_16(weight_ND: Tensor) -> Tensor:
    """Which columns of each panel are not all zero: [panels, inputs]."""
    whole_panels = F.pad(weight_ND != 0, (0, 0, 0, -weight_ND.shape[0] % PANEL))
    return whole_panels.unflatten(0, (-1, PANEL)).any(1)


def _copy_of(values: Tensor) -> Callable[[Tensor], object]:
    """A writer of values that are already laid out."""
    return lambda out: out.copy_(values)


def _spread(weight: Tensor, dim: int, span: Span, width: int) -> Tensor:
    """The units of `dim` at their positions, with zeros as padding; the weight itself where there is no padding."""
    if width == span.units:
        return weight
    shape = list(weight.shape)
    shape[dim] = width
    return weight.new_zeros(shape).index_copy_(dim, span.positions, weight)


def panels(weight_WD: Tensor, before: Span, out: Tensor) -> None:
    """[blocks of inputs][panels][inputs of the block][16]: all weights of an open block are contiguous."""
    panels_PSD = weight_WD.unflatten(0, (-1, PANEL))
    pieces = panels_PSD.split(before.block, dim=2)
    for piece_PSK, to in zip(pieces, out.split(weight_WD.shape[0] * before.block), strict=True):
        to.view(len(panels_PSD), -1, PANEL).copy_(piece_PSK.transpose(1, 2))


def by_input(weight_WD: Tensor, _before: Span, out: Tensor) -> None:
    """[inputs][outputs]: all weights of an input are contiguous."""
    out.view(weight_WD.shape[1], -1).copy_(weight_WD.T)


def by_unit(weight_WD: Tensor, _before: Span, out: Tensor) -> None:
    """[outputs][inputs]: all weights of an output are contiguous, with zeros up to whole panels of inputs."""
    rows_WD = out.view(len(weight_WD), -1)
    rows_WD[:, weight_WD.shape[1] :] = 0
    rows_WD[:, : weight_WD.shape[1]] = weight_WD


def vectors(weight_WD: Tensor, block: int) -> tuple[Tensor, Tensor, Tensor]:
    """Panels without their all-zero columns: values [vectors][16], starts, and each one's input within its block."""
    values, starts, columns = [], [0], []
    panels_PSD = weight_WD.unflatten(0, (-1, PANEL))
    for piece in panels_PSD.split(block, dim=2):
        for panel_SK in piece:
            column = panel_SK.any(dim=0).nonzero().flatten()
            values.append(panel_SK[:, column].T.reshape(-1))
            columns.append(column)
            starts.append(starts[-1] + column.numel())
    return torch.cat(values), torch.tensor(starts), torch.cat(columns)


def vectors_by_input(weight_WD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same vectors grouped by input, and the panel of each: the vectors of a single input are contiguous."""
    panels_DPS = weight_WD.unflatten(0, (-1, PANEL)).permute(2, 0, 1)
    column, panel = panels_DPS.any(dim=2).nonzero(as_tuple=True)
    starts = F.pad(torch.bincount(column, minlength=weight_WD.shape[1]).cumsum(0), (1, 0))
    return panels_DPS[column, panel].flatten(), starts, panel


def csr(weight_WK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values, start of each row, column of each value."""
    row, column = weight_WK.nonzero(as_tuple=True)
    starts = F.pad(torch.bincount(row, minlength=weight_WK.shape[0]).cumsum(0), (1, 0))
    return weight_WK[row, column], starts, column


def padded(size: int) -> int:
    """`size` as whole panels."""
    return -(-size // PANEL) * PANEL
