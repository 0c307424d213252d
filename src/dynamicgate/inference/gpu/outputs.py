"""Outputs of CUDA graphs that are handed out where they were written, and written again once nobody holds them.

A copy of the logits of 4,096 tokens takes 3 % of the time of a small model. Two graphs of the same call, each with
outputs of its own, need none: in a loop one is filled while the last outputs are still held. A third one, whose outputs
are copied, answers where the outputs of both are held.

The graphs share the memory in which they work, a pool, as scratch for each would double it. A pool promises only that
a capture does not touch what is alive at that time. So later graphs do not touch the outputs of the first one; but the
outputs of the second may lie where the first one had its scratch, and be destroyed when that one runs again. Therefore
a place as large as the outputs is held while the first graph is captured, which then cannot touch it, and given back
before the second is. Only if the outputs of the second lie in that place are they handed out: that is looked up, not
hoped for. If they lie elsewhere, they are the ones that are copied, and there is no third graph.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

WORTH_A_GRAPH = 1 << 24  # bytes of outputs: fewer are copied in a few microseconds
Run = Callable[[], Tensor]


class Pool(Protocol):
    """Memory that graphs share, of which one runs at a time."""

    def warm_up(self, call: Run) -> Tensor:
        """What `call` returns, outside of a graph; kernels are compiled and chosen afterwards."""

    def empty(self, nbytes: int) -> Tensor:
        """Bytes from this memory, while something is captured."""

    def capture(self, call: Run) -> Run:
        """`call` as a graph. What it returns is the same tensor at every run."""


def graphs_of(call: Run, pool: Pool) -> list[Run]:
    """One graph of `call` or several. None of them writes the outputs of another but of the last one, which are to be
    copied at once. Several only if outputs are large, and the call's own: not an input, a weight or a part of these."""

    def own_call() -> Tensor:  # a view, as `linear` returns in three dimensions, would hold what it is a view of
        return call().detach()

    outputs = pool.warm_up(own_call)
    nbytes = outputs.untyped_storage().nbytes()
    several = outputs.nbytes >= WORTH_A_GRAPH and holders(outputs) == alone()
    del outputs
    if not several:
        return [pool.capture(own_call)]
    place: list[Tensor] = []

    def beside_the_place() -> Tensor:
        place.append(pool.empty(nbytes))
        return own_call()

    first = pool.capture(beside_the_place)
    start = place.pop().data_ptr()  # the place is free from here on
    second = pool.capture(own_call)
    written = second().untyped_storage()
    if start <= written.data_ptr() and written.data_ptr() + written.nbytes() <= start + nbytes:
        return [first, second, pool.capture(own_call)]
    return [first, second]


class Outputs:
    """What graphs of the same call return, in memory that no later call overwrites while somebody holds it.

    Callers get the memory that a graph wrote, and it is that graph's turn again when nobody holds a view of it any
    more. Where callers hold the outputs of all graphs, the last one is copied. Whoever reads outputs on a stream other
    than the one of the call has to make that one wait before letting go of them, or clone them: `record_stream` is for
    memory that goes back to torch, which this does not, and cannot be seen.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        """As `graphs_of` gives them: only what the last one writes, and is copied, may be written by others."""
        *kept, self._copied = runs
        self._kept = [_Kept(run) for run in kept]

    def __call__(self, stream: Any = None) -> Tensor:
        """Run a graph. stream: the current one of the device."""
        for kept in self._kept:
            if kept.is_free():
                return kept.run(stream)
        return self._copied().clone()


class _Kept:
    """A graph whose outputs are handed out."""

    def __init__(self, graph: Run) -> None:
        self._graph, self._written, self._used = graph, graph(), LastStream()
        self._alone = alone()
        # Outputs that are an input or a weight, or a part of something else, are not the graph's to give away.
        self._own = holders(self._written) == self._alone

    def is_free(self) -> bool:
        return self._own and holders(self._written) == self._alone

    def run(self, stream: Any) -> Tensor:
        self._used.pass_to(stream)  # who held the outputs may have let go of them before the device has read them
        self._graph()
        return self._written.detach()


class LastStream:
    """On which stream of the device some memory was used last."""

    def __init__(self, stream: Any = None) -> None:
        """None: on no stream yet, or there are none, as on the CPU."""
        self._last = stream

    def pass_to(self, stream: Any) -> None:
        """`stream` uses it next, after all that was launched on the last one."""
        if self._last is not None and stream != self._last:
            stream.wait_stream(self._last)
        self._last = stream


def current_stream(device: torch.device) -> torch.cuda.Stream | None:
    """The stream on which calls are launched; None on the CPU."""
    return torch.cuda.current_stream(device) if device.type == "cuda" else None


def holders(tensor: Tensor) -> int:
    """How many objects hold its memory, and references to it as a storage of Python, those of the question included."""
    storage = tensor.untyped_storage()  # the same object for everyone who asks, so that it counts once for the memory
    return torch._C._storage_Use_Count(storage._cdata) + sys.getrefcount(storage)


def alone() -> int:
    """What `holders` says of a tensor that is the only one of its memory."""
    return holders(torch.empty(0))
