"""Choose the fastest strategy of a feed-forward layer for each number of tokens: time them, and capture CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import sqrt

from torch import Tensor

from dynamicgate.inference.gpu.candidates import COMPILED, UNGATED, candidates_for, most_tokens, strategy
from dynamicgate.inference.gpu.cuda_graph import CapturedCall
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.timing import time_calls
from dynamicgate.inference.timing import batches_of

MAX_CAPTURED = 1024  # tokens: beyond, launches take hardly any of the time, and captured graphs hold memory
DENSE_MARGIN = 0.95  # a margin of less than 5 % over dense may be noise, and gone the next time
Call = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Chosen:
    """What was measured."""

    times: list[dict[str, float]]
    """For each number of tokens the microseconds of every strategy, by name, and of UNGATED, eager and compiled."""
    notes: list[str]

    @property
    def names(self) -> list[str]:
        """The fastest strategy for each number of tokens."""
        return [fastest(row) for row in self.times]


def choose_strategies(
    layer: FeedForward, rows_RD: Tensor, batches: Sequence[int], *, seconds: float, verifiable: bool
) -> Chosen:
    """Time the strategies of `layer` on `rows_RD`, as they enter it, for each number of tokens.

    verifiable: whether there are rows to verify a strategy on; if not, only dense ones are timed.
    """
    times, notes = [], []
    for batch in batches:
        names = [UNGATED, f"{UNGATED}{COMPILED}", *candidates_for(layer, batch)]
        if not verifiable:
            names = [name for name in names if not name.startswith(("gated", "decode"))]
            notes.append("every row has a logit near a threshold, so that only dense strategies can be trusted")
        xs = _inputs(rows_RD, batch)
        calls: dict[str, Call] = {}
        for name in names:
            call: Call = partial(strategy(name), layer)
            try:
                for _ in range(2):  # compile, choose, allocate
                    call(xs[0])
            except Exception as error:  # a compiler that is missing, or that cannot compile this
                notes.append(f"{name!r} does not run here: {type(error).__name__}: {str(error).splitlines()[0]}")
            else:
                calls[name] = call
        times.append(time_calls(calls, xs, seconds / len(batches)))
    return Chosen(times, notes)


def use_chosen_(layer: FeedForward, rows_RD: Tensor, batches: Sequence[int], chosen: Chosen) -> None:
    """Let the fastest strategy run each number of tokens; between two of them the nearer on a log scale decides."""
    strategies: list[tuple[int | None, str]] = []
    captured = {}
    for i, (batch, times, best) in enumerate(zip(batches, chosen.times, chosen.names, strict=True)):
        most = int(sqrt(batch * batches[i + 1])) if i + 1 < len(batches) else None
        limit = most_tokens(best)
        if limit is not None:
            strategies.append((limit if most is None else min(most, limit), best))
            others = {name: t for name, t in times.items() if most_tokens(name) is None}
            strategies += [(None, fastest(others))] if most is None else []
        else:
            strategies.append((most, best))
        if batch <= MAX_CAPTURED and rows_RD.is_cuda:
            captured[batch] = CapturedCall(partial(strategy(best), layer), _inputs(rows_RD, batch)[0])
    layer.use_(strategies, captured)


def fastest(times: Mapping[str, float]) -> str:
    """The fastest strategy that computes what the model computes; a dense one unless another is clearly faster."""
    gated = {name: t for name, t in times.items() if not name.startswith(UNGATED)}
    best = min(gated, key=lambda name: gated[name])
    dense = min((name for name in gated if name.startswith("dense")), key=lambda name: gated[name])
    return dense if gated[dense] * DENSE_MARGIN <= gated[best] else best


def _inputs(rows_RD: Tensor, tokens: int) -> list[Tensor]:
    return batches_of(rows_RD, tokens, at_most=8)
