"""Packs a chain in stages into the two flat tensors of `pack`, and back. Its words are those of csrc/program.h."""

from __future__ import annotations

import struct
from itertools import accumulate

import torch
from torch import Tensor

from dynamicgate.activations import BY_CODE
from dynamicgate.ops.chain.layers import LAYOUTS, Layer
from dynamicgate.ops.chain.packing import HEADER_WORDS, LINEAR_WORDS, PANEL, Packed, Writer, padded, whole, write_linear
from dynamicgate.ops.chain.stages import DECIDE, Head, Staged, check_staged
from dynamicgate.ops.chain.unpacking import PackedLinear, read_linear

STAGED_MAGIC = 0x44475301
PART_WORDS = LINEAR_WORDS + 2


def pack_staged(staged: Staged) -> Packed:
    """Lay out a chain in stages for the kernels."""
    check_staged(staged)
    stages, layers = len(staged.stages), len(staged.stages[0])
    writer = Writer(HEADER_WORDS + stages * ((layers + 1) * PART_WORDS + 1))
    sizes = [[stage[i].weight.shape[0] for stage in staged.stages] for i in range(layers - 1)]
    starts = [[0, *accumulate(map(padded, of_layer))] for of_layer in sizes]
    words: list[int] = []
    for k, stage in enumerate(staged.stages):
        for i, layer in enumerate(stage[:-1]):
            weight = layer.weight if i == 0 else _spread_inputs(layer.weight, sizes[i - 1][: k + 1])
            words += [*_part(writer, _padded_outputs(layer, weight)), 0, starts[i][k]]
        last = stage[-1]
        weight = _spread_inputs(last.weight, [sizes[-1][k]])
        words += [*_part(writer, _with(last, weight, last.bias)), starts[-1][k], 0]
        if k < len(staged.heads):
            weight, bias = staged.heads[k]
            words += [*_part(writer, Layer(_spread_inputs(weight, sizes[-1][: k + 1]), bias, layout="rows")), 0, 0]
        else:
            words += [0] * PART_WORDS
    words += [_bits(cut) for cut in (*staged.cut, 0.0)]
    inputs = staged.stages[0][0].weight.shape[1]
    head = [
        STAGED_MAGIC,
        layers,
        inputs,
        staged.outputs,
        writer.lines,
        writer.words,
        stages,
        DECIDE.index(staged.decide),
    ]
    program = torch.cat((torch.tensor(head + words, dtype=torch.int32), *writer.index))
    return Packed(writer.floats(), program, staged.outputs)


def unpack_staged(weights: Tensor, program: Tensor) -> Staged:
    """The chain in stages that was packed. Its stages keep the units that pad them, which are always zero."""
    head = program[:HEADER_WORDS].tolist() if program.numel() >= HEADER_WORDS else [0] * HEADER_WORDS
    _, layers, _, _, lines, count, stages, decide = head
    table = HEADER_WORDS + stages * ((layers + 1) * PART_WORDS + 1)
    if head[0] != STAGED_MAGIC or count != program.numel() or lines * PANEL != weights.numel() or count < table:
        raise ValueError("weights and program must come from the same call of pack")
    words = program[HEADER_WORDS:table].tolist()
    found: list[tuple[Layer, ...]] = []
    heads: list[Head] = []
    for k in range(stages):
        starts = range(k * (layers + 1) * PART_WORDS, (k + 1) * (layers + 1) * PART_WORDS, PART_WORDS)
        linears = [PackedLinear(*words[at : at + LINEAR_WORDS]) for at in starts]
        found.append(tuple(_read(weights, program, linear) for linear in linears[:-1]))
        if DECIDE[decide] == "head" and k + 1 < stages:
            layer = _read(weights, program, linears[-1])
            heads.append(Head(layer.weight, layer.bias))
    cut = tuple(_float(word) for word in words[-stages:-1])
    return Staged(tuple(found), cut, DECIDE[decide], tuple(heads))


def is_staged(program: Tensor) -> bool:
    """Whether `program` is that of a chain in stages."""
    return program.numel() > 0 and int(program[0]) == STAGED_MAGIC


def _part(writer: Writer, layer: Layer) -> list[int]:
    outputs, inputs = layer.weight.shape
    before, after = whole(inputs), whole(outputs)
    return write_linear(
        writer, layer.weight, layer.bias, layer.activation, layer.layout, before, after, layer.skip_zeros
    )


def _read(weights: Tensor, program: Tensor, linear: PackedLinear) -> Layer:
    weight, bias = read_linear(weights, program, linear, whole(linear.inputs), whole(linear.units))
    activation, layout = BY_CODE[linear.activation].name, LAYOUTS[linear.layout]
    return Layer(weight, bias, activation, layout=layout, skip_zeros=bool(linear.skip_zeros))


def _padded_outputs(layer: Layer, weight: Tensor) -> Layer:
    """The layer with whole panels of outputs: even the layouts that could stop early write the padding."""
    units = weight.shape[0]
    width = padded(units)
    if width == units:
        return _with(layer, weight, layer.bias)
    bias = None if layer.bias is None else torch.cat((layer.bias, layer.bias.new_zeros(width - units)))
    return _with(layer, torch.cat((weight, weight.new_zeros(width - units, weight.shape[1]))), bias)


def _spread_inputs(weight: Tensor, sizes: list[int]) -> Tensor:
    """The columns at the positions of the units that they read: every stage starts with a new panel."""
    if all(size == padded(size) for size in sizes):
        return weight
    parts = zip(weight.split(sizes, dim=1), sizes, strict=True)
    spread = [torch.cat((part, part.new_zeros(len(weight), padded(size) - size)), dim=1) for part, size in parts]
    return torch.cat(spread, dim=1)


def _with(layer: Layer, weight: Tensor, bias: Tensor | None) -> Layer:
    return Layer(weight, bias, layer.activation, layout=layer.layout, skip_zeros=layer.skip_zeros)


def _bits(number: float) -> int:
    return int(struct.unpack("i", struct.pack("f", number))[0])


def _float(word: int) -> float:
    return float(struct.unpack("f", struct.pack("i", word))[0])
