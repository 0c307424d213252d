"""The nodes of one chain, between the value that enters it and the one that leaves it."""

from __future__ import annotations

import numpy as np

from dynamicgate.export.chains import ChainParts
from dynamicgate.export.onnx_gates import write_gated
from dynamicgate.export.onnx_graph import Graph
from dynamicgate.export.onnx_stages import write_staged


def write_chain(prefix: str, x: str, y: str, parts: ChainParts, rank: int, *, skip: bool) -> Graph:
    """A graph that computes `y` from `x`, which has `rank` dimensions."""
    graph = Graph(prefix)
    inputs = (parts.layers or parts.staged.stages[0])[0].weight.shape[1]  # type: ignore[union-attr]
    features = inputs - (parts.norm_eps is not None)
    rows = x if rank == 2 else graph.op("Reshape", x, graph.integers(-1, features))
    if parts.norm_eps is not None:
        rows = _scaled_features(graph, rows, parts.norm_eps)
    if parts.staged is not None:
        out = write_staged(graph, rows, parts.staged, skip=skip)
    else:
        out = write_gated(graph, rows, parts, skip=skip)
    if rank != 2:
        leading = graph.op("Shape", x, end=-1)
        shape = graph.op("Concat", leading, graph.integers(parts.outputs), axis=0)
        out = graph.op("Reshape", out, shape)
    graph.op("Identity", out)
    graph.nodes[-1].output[0] = y
    return graph


def _scaled_features(graph: Graph, x: str, eps: float) -> str:
    """As `dynamicgate.inference.cpu.lower.scaled_features`."""
    last = graph.integers(-1)
    mean = graph.op("ReduceMean", x, last)
    off = graph.op("Sub", x, mean)
    variance = graph.op("ReduceMean", graph.op("Mul", off, off), last)
    deviation = graph.op("Sqrt", graph.op("Add", variance, graph.constant(np.float32(eps))))
    return graph.op("Concat", graph.op("Div", x, deviation), graph.op("Div", mean, deviation), axis=1)
