"""A chain in stages in ONNX: an `If` after each stage, and behind it only the rows that open the next one.

Shapes in names: B rows, N units, C outputs.
"""

from __future__ import annotations

from collections.abc import Sequence

from dynamicgate.export.onnx_graph import Graph, activate, linear
from dynamicgate.ops.chain.stages import Staged


def write_staged(graph: Graph, x: str, staged: Staged, *, skip: bool) -> str:
    """The outputs of a chain in stages for rows `x`. skip: leave out rows that stop; else all stages run for all."""
    return _after(graph, staged, 0, x, [[] for _ in staged.stages[0][:-1]], None, skip=skip)


def _after(
    graph: Graph, staged: Staged, k: int, x: str, hidden: Sequence[Sequence[str]], outputs: str | None, *, skip: bool
) -> str:
    """The outputs from stage k on. hidden: for each layer the units of the stages before; outputs: those so far."""
    *layers, last = staged.stages[k]
    below: list[str] = [x]
    found: list[list[str]] = []
    for before, layer in zip(hidden, layers, strict=True):
        read = below[0] if len(below) == 1 else graph.op("Concat", *below, axis=1)
        units = activate(graph, layer.activation, linear(graph, read, layer.weight, layer.bias))
        below = [*before, units]
        found.append(below)
    added = linear(graph, found[-1][-1], last.weight, last.bias)
    outputs = added if outputs is None else graph.op("Add", outputs, added)
    if k + 1 == len(staged.stages):
        return outputs
    cut = graph.constant(staged.cut[k])
    opens_B1 = graph.op("Greater", _score(graph, staged, k, outputs, found[-1]), cut)
    if not skip:
        later = _after(graph, staged, k + 1, x, found, outputs, skip=False)
        return graph.op("Where", opens_B1, later, outputs)
    index = graph.op(
        "Squeeze", graph.op("NonZero", graph.op("Squeeze", opens_B1, graph.integers(1))), graph.integers(0)
    )
    some = graph.op("Greater", graph.op("Size", index), graph.constant(0, "int64"))
    stays = outputs

    def go_on(inside: Graph) -> str:
        def only(value: str) -> str:
            return inside.op("Gather", value, index, axis=0)

        kept = [[only(units) for units in of_layer] for of_layer in found]
        later = _after(inside, staged, k + 1, only(x), kept, only(stays), skip=True)
        return inside.op("ScatterND", stays, inside.op("Unsqueeze", index, inside.integers(1)), later)

    return graph.choose(some, go_on, lambda inside: stays)


def _score(graph: Graph, staged: Staged, k: int, outputs: str, units: Sequence[str]) -> str:
    """How much each row needs the next stage, [B, 1]; as `dynamicgate.ops.chain.stages.score_of`."""
    if staged.decide == "head":
        read = units[0] if len(units) == 1 else graph.op("Concat", *units, axis=1)
        return linear(graph, read, *staged.heads[k])
    if staged.decide == "entropy":
        # -p log p with the logarithm of the softmax, which is finite where p is rounded to 0
        log_p = graph.op("LogSoftmax", outputs, axis=-1)
        sums = graph.op("ReduceSum", graph.op("Mul", graph.op("Exp", log_p), log_p), graph.integers(-1))
        return graph.op("Neg", sums)
    largest, _ = graph.ops(2, "TopK", outputs, graph.integers(2), axis=-1)
    first, second = graph.ops(2, "Split", largest, num_outputs=2, axis=-1)
    return graph.op("Sub", second, first)
