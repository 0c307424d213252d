"""Choose the fastest candidate of a chain for each batch size: time them, and keep few.

The layouts of the layers are chosen one after the other with the others held fixed. Then the best packed chain of every
batch size is timed against the dense candidates: torch, and our panels with the gates in torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import log

from torch import Tensor, nn

from dynamicgate.inference.cpu.candidates import (
    DENSE,
    OWN_DENSE,
    Candidate,
    Candidates,
    LayerLayout,
    packed,
)
from dynamicgate.inference.cpu.lower import Lowered
from dynamicgate.inference.cpu.timing import time_calls
from dynamicgate.inference.shadow_copy import held_bytes
from dynamicgate.inference.timing import batches_of
from dynamicgate.ops.chain.packing import PANEL

UNGATED = "ungated dense"
COMPILED_DENSE = "compiled dense"
DENSE_MARGIN = 0.97  # a margin of less than 3 % over dense torch is noise
PRICE_OF_A_COPY = 0.02  # of the time at one batch size: what another copy of the weights must gain
MOSTLY_OPEN = 0.6


@dataclass(frozen=True)
class Chosen:
    """The candidates to keep, which of them runs each batch size, and what was measured."""

    candidates: list[Candidate]
    implementations: list[nn.Module]
    """One for each of the candidates."""
    choice: list[int]
    """For each batch size the index of its candidate."""
    times: list[dict[str, float]]
    """For each batch size the microseconds of every candidate of the last round, by name, and of UNGATED and
    COMPILED_DENSE."""


def choose_candidates(
    candidates: Candidates,
    ungated: Callable[[Tensor], Tensor],
    rows_RD: Tensor,
    batches: Sequence[int],
    *,
    open_rates: Mapping[str, float],
    seconds: float,
    memory: float | None,
    same_bits: bool = False,
) -> Chosen:
    """Time the candidates on `rows_RD`, as they enter the chain, at each of `batches`, and keep the fastest.

    ungated: the layers without gates. It computes something else, and is timed for comparison only.
    open_rates: of the gates, by site. same_bits: without the candidates that leave matrix products to torch.
    """
    layouts = candidates.layouts_to_try(zeros=float((rows_RD == 0).double().mean()))
    whole = candidates.whole_stream
    each = seconds / len(batches) / (1 + sum(len(of_layer) > 1 for of_layer in layouts))
    best = {
        batch: _best_layouts(candidates, layouts, batches_of(rows_RD, batch, whole=whole), each) for batch in batches
    }
    own = [OWN_DENSE] if _dense_may_win(candidates.lowered, open_rates) else []
    finalists = list(dict.fromkeys([*([] if same_bits else [DENSE, *own]), *best.values()]))
    times = []
    dense = {UNGATED: ungated, COMPILED_DENSE: candidates.compiled_dense()}
    for batch in batches:
        calls = dense | {c.name: candidates.call(candidates.build(c)) for c in finalists}
        times.append(time_calls(calls, batches_of(rows_RD, batch, whole=whole), each))
    sizes = {c.name: held_bytes(candidates.build(c)) for c in finalists}
    names, choice = select(times, sizes, None if memory is None else memory * candidates.lowered.dense_bytes)
    by_name = {c.name: c for c in finalists}
    kept = [by_name[name] for name in names]
    found = Chosen(kept, [candidates.build(c) for c in kept], choice, times)
    candidates.forget_built_()
    return found


def select(
    times: Sequence[Mapping[str, float]], sizes: Mapping[str, int], max_bytes: float | None
) -> tuple[list[str], list[int]]:
    """The set of candidates that is fastest over all batch sizes, where every further one must pay for its memory.

    Returns their names and, for each batch size, the index of the fastest.
    """
    sets = [list(c) for count in range(1, min(len(sizes), len(times)) + 1) for c in combinations(sizes, count)]
    allowed = [names for names in sets if max_bytes is None or sum(sizes[n] for n in names) <= max_bytes]
    if not allowed:
        allowed = [[min(sizes, key=lambda name: sizes[name])]]

    def cost(names: list[str]) -> float:
        return sum(log(min(row[n] for n in names)) for row in times) + PRICE_OF_A_COPY * (len(names) - 1)

    kept = min(allowed, key=cost)
    dense = DENSE.name
    if [dense] in allowed and all(row[dense] * DENSE_MARGIN <= min(row[n] for n in kept) for row in times):
        kept = [dense]
    return kept, [min(range(len(kept)), key=lambda i: row[kept[i]]) for row in times]


def _dense_may_win(lowered: Lowered, open_rates: Mapping[str, float]) -> bool:
    """Whether dense panels with a gate in torch could be fastest: blocks are small, or hardly anything is closed.
    Otherwise they would be another copy of the weights for nothing."""
    gated = [stage for stage in lowered.stages if stage.layer.block]
    return any(s.layer.block < PANEL or open_rates[s.site or ""] > MOSTLY_OPEN for s in gated)


def _best_layouts(
    candidates: Candidates, layouts: Sequence[list[LayerLayout]], xs: list[Tensor], seconds: float
) -> Candidate:
    current = [of_layer[0] for of_layer in layouts]
    for i, of_layer in enumerate(layouts):
        if len(of_layer) == 1:
            continue
        by_name = {}
        calls = {}
        for layout in of_layer:
            candidate = packed([*current[:i], layout, *current[i + 1 :]])
            by_name[candidate.name] = layout
            calls[candidate.name] = candidates.call(candidates.build(candidate))
        times = time_calls(calls, xs, seconds)
        current[i] = by_name[min(times, key=lambda name: times[name])]
    return packed(current)
