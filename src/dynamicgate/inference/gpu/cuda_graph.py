"""A call captured as a CUDA graph: replayed without running Python again, for one number of tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WORTH_A_GRAPH = 1 << 24  # bytes of outputs: fewer are copied in a few microseconds
KEPT = 2  # graphs whose outputs callers may keep: in a loop one is filled while the last outputs are still held


def captured(
    call: Callable[[], T], device: torch.device | None = None, *, runs: int = 2, pool: Any = None
) -> Callable[[], T]:
    """`call`, which works on memory that stays where it is, as a CUDA graph. What it returns is overwritten by the next
    call. It runs a few times first, so that kernels are compiled and chosen before the capture. device: the current one
    by default. pool: of memory that it shares with other graphs, of which one runs at a time."""
    aside, now = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        for _ in range(runs):
            call()
    now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        found = call()

    def replay() -> T:
        graph.replay()
        return found

    return replay


class Outputs:
    """What graphs of the same call return, in memory that no later call overwrites while somebody holds it.

    A copy of the logits of 4,096 tokens takes 3 % of the time of a small model. So callers get the memory that a graph
    wrote, and it is that graph's turn again when nobody holds a view of it any more. Where callers hold the outputs of
    all graphs, the last one is copied.
    """

    def __init__(self, runs: Sequence[Callable[[], Tensor]]) -> None:
        """Each of `runs` writes memory of its own, the same at every call; what the last one writes is copied."""
        *self._kept, self._copied = runs
        self._written = [run() for run in self._kept]
        self._alone = holders(torch.empty(0))
        # Outputs that are an input or a weight, or a part of something else, are not the graph's to give away.
        self._own = [holders(written) == self._alone for written in self._written]

    def __call__(self) -> Tensor:
        """Run a graph."""
        for run, written, own in zip(self._kept, self._written, self._own, strict=True):
            if own and holders(written) == self._alone:
                run()
                return written.detach()
        return self._copied().clone()


def holders(tensor: Tensor) -> int:
    """How many objects hold its memory, that which asks included."""
    return torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)


class CapturedCall:
    """`call` on inputs of one shape. Threads and streams may share it: they take turns with its memory."""

    def __init__(self, call: Callable[[Tensor], Tensor], x_TD: Tensor) -> None:
        """Captures `call` on a copy of `x_TD`; several times if its outputs are large."""
        self.x_TD = x_TD.clone()
        self._last = torch.cuda.current_stream(x_TD.device)
        pool = torch.cuda.graph_pool_handle()
        runs = [captured(lambda: call(self.x_TD), x_TD.device, pool=pool)]
        if runs[0]().nbytes >= WORTH_A_GRAPH:
            runs += [captured(lambda: call(self.x_TD), x_TD.device, runs=0, pool=pool) for _ in range(KEPT)]
        self._outputs = Outputs(runs)
        self._turn = threading.Lock()

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The outputs, which later calls do not overwrite."""
        with self._turn:
            stream = torch.cuda.current_stream(x_TD.device)
            if stream != self._last:
                stream.wait_stream(self._last)
                self._last = stream
            self.x_TD.copy_(x_TD)
            return self._outputs()

    def can_run(self) -> bool:
        """Not while someone captures or compiles the whole model: they need to see the work itself."""
        return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a layer has weights of its own, which the captured graph does not read."""
        return
