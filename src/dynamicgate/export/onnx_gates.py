"""A chain with gates on units in ONNX, for a single row and for several.

For a single row the open blocks of the weights are gathered, and only they are multiplied: the work of closed blocks is
skipped on both sides. For several rows, which open different blocks, everything is computed and closed units are
multiplied by zero. An `If` chooses between the two while the model runs.

Shapes in names: B rows, D features read, N units, G blocks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.export.chains import ChainParts
from dynamicgate.export.onnx_graph import Graph, activate, linear
from dynamicgate.inference.cpu.lower import Router
from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.gate_net import NEAREST, GateNet

WIDE = 8  # units of a block from which it is one product for each block: faster with 16, not timed with others


class Decided(NamedTuple):
    """What a gate decides: bools [B, G], and factors [B, G], or None where they are 0 and 1."""

    open: str
    factor: str | None


class Gathered(NamedTuple):
    """The open blocks of the units that a layer reads: their indices, and their size."""

    blocks: str
    size: int


def write_gated(graph: Graph, x: str, parts: ChainParts, *, skip: bool) -> str:
    """The outputs of a chain for rows `x` [B, D]. skip: gather the open blocks where there is one row."""
    if not (skip and parts.is_gated):
        return _layers(graph, x, parts, gather=False)
    rows = graph.op("Shape", x, start=0, end=1)
    single = graph.op("Squeeze", graph.op("Equal", rows, graph.integers(1)))
    return graph.choose(
        single,
        lambda inside: _layers(inside, x, parts, gather=True),
        lambda inside: _layers(inside, x, parts, gather=False),
    )


def _layers(graph: Graph, x: str, parts: ChainParts, *, gather: bool) -> str:
    h = x
    before: Gathered | None = None
    for layer in parts.layers:
        decided = None
        if layer.gate is not None:
            decided = _decide(graph, _logits(graph, h, layer.gate, before), layer.gate)
        elif layer.block:
            assert parts.router is not None
            decided = _route(graph, h, parts.router)
        after = _gathered(graph, decided, layer) if gather and decided is not None else None
        h = activate(graph, layer.activation, _linear(graph, h, layer, before, after))
        if decided is not None:
            h = _scaled(graph, h, decided, layer, after)
        before = after
    return h


def _gathered(graph: Graph, decided: Decided, layer: Layer) -> Gathered:
    """The indices of the open blocks of the one row."""
    found = graph.op("NonZero", graph.op("Squeeze", decided.open, graph.integers(0)))
    return Gathered(graph.op("Squeeze", found, graph.integers(0)), layer.block)


def _linear(graph: Graph, h: str, layer: Layer, before: Gathered | None, after: Gathered | None) -> str:
    """W h + b with the rows and columns that are open only."""
    if before is None and after is None:
        return linear(graph, h, layer.weight, layer.bias)
    weight_ND = layer.weight.detach()
    if before is None and after is not None and after.size >= WIDE:
        return _block_by_block(graph, h, layer, after)
    bias = [] if layer.bias is None else [_bias(graph, layer.bias.detach(), after)]
    if before is None:
        assert after is not None
        blocks_GND = _in_blocks(weight_ND, after.size)
        weight = graph.op("Gather", graph.constant(blocks_GND), after.blocks, axis=0)
        weight = graph.op("Reshape", weight, graph.integers(-1, weight_ND.shape[1]))
        return graph.op("Gemm", h, weight, *bias, transB=1)
    # Transposed, so that the units of an open block lie side by side whatever they are read by.
    blocks_GDN = _in_blocks(weight_ND.T, before.size)
    weight = graph.op("Gather", graph.constant(blocks_GDN), before.blocks, axis=0)
    if after is None:
        weight = graph.op("Reshape", weight, graph.integers(-1, weight_ND.shape[0]))
        return graph.op("Gemm", h, weight, *bias)
    count = -(-weight_ND.shape[0] // after.size)
    padded_GDN = F.pad(blocks_GDN, (0, count * after.size - weight_ND.shape[0]))
    weight = graph.op("Gather", graph.constant(padded_GDN), before.blocks, axis=0)
    weight = graph.op("Reshape", weight, graph.integers(-1, count, after.size))
    weight = graph.op("Flatten", graph.op("Gather", weight, after.blocks, axis=1), axis=1)
    return graph.op("Gemm", h, weight, *bias)


def _block_by_block(graph: Graph, h: str, layer: Layer, after: Gathered) -> str:
    """The same as one small product for each open block, whose weights are read as they were gathered."""
    blocks_GDN = _in_blocks(layer.weight.detach(), after.size).transpose(1, 2)

    def products(inside: Graph) -> str:
        found = inside.op("MatMul", h, inside.op("Gather", inside.constant(blocks_GDN), after.blocks, axis=0))
        if layer.bias is not None:
            bias = _in_blocks(layer.bias.detach(), after.size)[:, None]
            found = inside.op("Add", found, inside.op("Gather", inside.constant(bias), after.blocks, axis=0))
        return inside.op("Reshape", found, inside.integers(1, -1))

    some = graph.op("Greater", graph.op("Size", after.blocks), graph.constant(0, "int64"))
    # onnxruntime refuses a product with no blocks at all.
    return graph.choose(some, products, lambda inside: inside.constant(torch.zeros(1, 0)))


def _bias(graph: Graph, bias_N: Tensor, after: Gathered | None) -> str:
    if after is None:
        return graph.constant(bias_N)
    open_blocks = graph.op("Gather", graph.constant(_in_blocks(bias_N, after.size)), after.blocks, axis=0)
    return graph.op("Reshape", open_blocks, graph.integers(-1))


def _in_blocks(value: Tensor, block: int) -> Tensor:
    """[units, ...] as [blocks, block, ...]; the last block is filled up with zeros."""
    missing = -len(value) % block
    return torch.cat((value, value.new_zeros(missing, *value.shape[1:]))).unflatten(0, (-1, block))


def _scaled(graph: Graph, h: str, decided: Decided, layer: Layer, after: Gathered | None) -> str:
    """Units times the factor of their block. Gathered units are open, so that factors of 0 and 1 are done with."""
    if after is not None and decided.factor is None:
        return h
    factor = decided.factor or graph.op("Cast", decided.open, to=1)
    if after is not None:
        factor = graph.op("Gather", factor, after.blocks, axis=1)
    elif layer.weight.shape[0] % layer.block:  # a shorter last block: the block of each unit by its number
        blocks = torch.arange(layer.weight.shape[0]) // layer.block
        return graph.op("Mul", h, graph.op("Gather", factor, graph.integers(*blocks.tolist()), axis=1))
    if layer.block == 1:
        return graph.op("Mul", h, factor)
    shape = (-1, layer.blocks, layer.block) if after is None else (1, -1, layer.block)
    in_blocks = graph.op("Reshape", h, graph.integers(*shape))
    scaled = graph.op("Mul", in_blocks, graph.op("Unsqueeze", factor, graph.integers(2)))
    return graph.op("Flatten", scaled, axis=1)


def _logits(graph: Graph, h: str, net: GateNet, before: Gathered | None) -> str:
    z = h
    for i, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        z = _between(graph, net.hidden, z) if i else z
        z = _linear(graph, z, Layer(weight, bias), before if i == 0 else None, None)
    return z


def _between(graph: Graph, hidden: str, z: str) -> str:
    """As `dynamicgate.ops.gate_net.between_maps`."""
    return graph.op("Cast", _largest(graph, z, 1), to=1) if hidden == NEAREST else activate(graph, hidden, z)


def _decide(graph: Graph, z: str, net: GateNet) -> Decided:
    """As `dynamicgate.ops.gate_net.decide`."""
    cut = graph.constant(net.cut)
    is_open = graph.op("Greater", z, cut)
    if net.top_k:
        is_open = graph.op("Or", is_open, _largest(graph, z, net.top_k))
    if net.soft_width is not None:
        above = graph.op("Div", graph.op("Sub", z, cut), graph.constant(net.soft_width))
        scale = graph.op("Clip", above, graph.constant(0.0), *([] if net.unbounded else [graph.constant(1.0)]))
    elif net.tau is not None:
        scale = graph.op("Sigmoid", graph.op("Div", z, graph.constant(net.tau)))
    else:
        return Decided(is_open, None)
    return Decided(is_open, graph.op("Mul", scale, graph.op("Cast", is_open, to=1)))


def _largest(graph: Graph, z: str, k: int) -> str:
    """Whether each value is one of the k largest of its row; ties go to the lowest index, as in torch."""
    _, index = graph.ops(2, "TopK", z, graph.integers(k), axis=-1)
    nothing = graph.op("Sub", z, z)
    ones = graph.op("Expand", graph.constant(1.0), graph.op("Shape", index))
    chosen = graph.op("ScatterElements", nothing, index, ones, axis=-1)
    return graph.op("Cast", chosen, to=9)


def _route(graph: Graph, h: str, router: Router) -> Decided:
    """As `dynamicgate.inference.gates.RouterInTorch`."""
    z = _logits(graph, h, router.net, None)
    scaled = graph.op("Div", z, graph.constant(router.tau))
    if router.k is not None:
        p = graph.op("Softmax", scaled, axis=-1)
        is_open = _largest(graph, p, router.k)
        weight = graph.op("Mul", p, graph.op("Cast", is_open, to=1))
        if router.k > 1:
            weight = graph.op("Div", weight, graph.op("ReduceSum", weight, graph.integers(-1)))
        return Decided(is_open, weight)
    is_open, _ = _decide(graph, z, router.net)
    closed_out = graph.op("Where", is_open, scaled, graph.constant(float("-inf")))
    highest = graph.op("ReduceMax", closed_out, graph.integers(-1))
    below = graph.op("Where", is_open, graph.op("Sub", scaled, highest), graph.constant(0.0))
    weight = graph.op("Mul", graph.op("Exp", below), graph.op("Cast", is_open, to=1))
    total = graph.op("Max", graph.op("ReduceSum", weight, graph.integers(-1)), graph.constant(1.0))
    return Decided(is_open, graph.op("Div", weight, total))
