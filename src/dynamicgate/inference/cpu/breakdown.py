"""What the plan says about a chain: for every layer and batch size the choice in words, and its part of the time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from dynamicgate import ops
from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.cpu.candidates import OWN_DENSE, Candidate, Candidates, LayerLayout
from dynamicgate.inference.cpu.choose import COMPILED_DENSE, UNGATED, Chosen
from dynamicgate.inference.cpu.find import LinearChain
from dynamicgate.inference.cpu.folding import Stage
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.plan import LayerPlan, Regime
from dynamicgate.inference.timing import batches_of
from dynamicgate.ops.gate_net import NEAREST

MAX_BYTES_TO_TIME = 64 << 20  # of weights


def regimes_of(
    chain: LinearChain,
    candidates: Candidates,
    chosen: Chosen,
    rows_RD: Tensor,
    batches: Sequence[int],
    macs: Mapping[str, float],
    seconds: float,
) -> list[Regime]:
    """One regime for each batch size, one row in it for each layer.

    The time of a layer is that of the chain up to and including it, minus that of the chain before it. Timing these
    prefixes packs the weights again, so in a large chain the total time is divided in proportion to executed MACs.
    """
    stages = candidates.lowered.stages
    counts = range(1, len(stages) + 1)
    each = seconds / len(batches) / 2
    dense_calls = [ungated(chain, count) for count in counts]
    found = []
    for batch, index, times in zip(batches, chosen.choice, chosen.times, strict=True):
        xs, candidate = batches_of(rows_RD, batch), chosen.candidates[index]
        chosen_us = times[candidate.name]
        dense = _split(dense_calls, xs, each, times[UNGATED], [float(s.shape[0] * s.shape[1]) for s in stages])
        work = [macs.get(stage.name, 0.0) for stage in stages]
        if candidates.lowered.dense_bytes < MAX_BYTES_TO_TIME:
            parts = [candidates.call(candidates.build_first(candidate, count)) for count in counts[:-1]]
            mine = _split([*parts, candidates.call(chosen.implementations[index])], xs, each, chosen_us, work)
        else:
            mine = _in_proportion(chosen_us, work)
        layers = [
            LayerPlan(s.name, s.shape, choice, d, c, macs.get(s.name, 0.0))
            for s, choice, d, c in zip(stages, choices_of(stages, candidate), dense, mine, strict=True)
        ]
        found.append(regime_of(batch, layers, candidate.name, times))
    return found


def regime_of(batch: int, layers: list[LayerPlan], chosen: str, times: Mapping[str, float]) -> Regime:
    """A regime from what was timed; the dense networks are no candidates, they compute something else."""
    timed = {name: t for name, t in times.items() if name not in (UNGATED, COMPILED_DENSE)}
    return Regime(batch, layers, chosen, timed, times[UNGATED], times[COMPILED_DENSE])


def _split(
    calls: Sequence[Callable[[Tensor], Tensor]],
    xs: Sequence[Tensor],
    seconds: float,
    total: float,
    work: Sequence[float],
) -> list[float]:
    """`total` divided over the layers. calls: the chain up to each of its layers, the whole chain last. Where a longer
    chain seems no slower, the differences are noise, and MACs (`work`) divide it."""
    if len(calls) == 1:
        return [total]
    ends = list(time_calls({str(i): call for i, call in enumerate(calls)}, xs, seconds).values())
    steps = [b - a for a, b in zip([0.0, *ends[:-1]], ends, strict=True)]
    return _in_proportion(total, work if min(steps) <= 0.0 else steps)


def _in_proportion(total: float, parts: Sequence[float]) -> list[float]:
    return [total * part / max(sum(parts), 1e-9) for part in parts]


def choices_of(stages: Sequence[Stage], candidate: Candidate) -> list[str]:
    """What each layer does, in words."""
    found = []
    for i, stage in enumerate(stages):
        layer = stage.layer
        outputs, inputs = layer.weight.shape
        if candidate.layouts is None:
            words = [candidate.name]
            if layer.block:
                words.append("closed by gate" if not _by_context(layer) else "closed by context")
        else:
            words = _words(layer, candidate.layouts[i])
            if i and stages[i - 1].layer.block and candidate.layouts[i].layout not in ("csr", "columns"):
                words.append("open inputs only")
        if outputs < stage.shape[0] or inputs < stage.shape[1]:
            words.append(f"sliced to {outputs} x {inputs}")
        found.append(", ".join(words))
    return found


def layout_words(layer: ops.chain.Layer, layout: LayerLayout) -> str:
    """What a packed layer does, in words."""
    return ", ".join(_words(layer, layout))


def _words(layer: ops.chain.Layer, layer_layout: LayerLayout) -> list[str]:
    layout, skips = layer_layout
    words = {"vectors": "16x1 vectors", "columns": "16x1 vectors"}
    if layout == "csr":
        fan_in = layer.weight.count_nonzero(1)
        words["csr"] = "constant fan-in" if bool((fan_in == fan_in[0]).all()) else "CSR"
    if not layer.block:
        dense = "zero-skip" if skips else OWN_DENSE.name
        return [words.get(layout, dense), *(["zero-skip"] if skips and layout in words else [])]
    by = "context" if _by_context(layer) else "unit" if layer.block == 1 else "block"
    kind = f"{by}-gated" + (f" ({layer.block})" if layer.block > 1 else "")
    return [kind + (f" x {words[layout]}" if layout in words else ""), *(["zero-skip"] if skips else [])]


def _by_context(layer: ops.chain.Layer) -> bool:
    return layer.gate is not None and layer.gate.hidden == NEAREST


def ungated(chain: LinearChain, count: int | None = None) -> Callable[[Tensor], Tensor]:
    """The first `count` layers of the chain (all by default) as they would run without gates in eager torch."""
    calls: list[Callable[[Tensor], Tensor]] = []
    linears = 0
    for step in chain.steps:
        if step.kind == "linear":
            if linears == count:
                break
            linears += 1
            linear: Any = step.module
            calls.append(lambda x, m=linear: F.linear(x, m.weight, m.bias))  # type: ignore[misc]
        elif step.kind == "activation":
            calls.append(ACTIVATIONS[step.activation].function)
        elif step.kind != "nothing":
            assert step.module is not None
            calls.append(step.module)

    def run(x: Tensor) -> Tensor:
        for call in calls:
            x = call(x)
        return x

    return run
