"""A call captured as a CUDA graph: replayed without running Python again, for one number of tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from dynamicgate.inference.gpu.outputs import LastStream, Outputs, current_stream, graphs_of

T = TypeVar("T")


def captured(
    call: Callable[[], T], device: torch.device | None = None, *, runs: int = 2, pool: Any = None
) -> Callable[[], T]:
    """`call`, which works on memory that stays where it is, as a CUDA graph. What it returns is overwritten by the next
    call. It runs a few times first, so that kernels are compiled and chosen before the capture. device: the current one
    by default. pool: of memory that it shares with other graphs, of which one runs at a time."""
    if runs:
        run_aside(call, device, runs)
    graph = torch.cuda.CUDAGraph()
    # A capture that fails may leave its own stream as the current one.
    with torch.cuda.stream(torch.cuda.current_stream(device)), torch.cuda.graph(graph, pool=pool):
        found = call()

    def replay() -> T:
        graph.replay()
        return found

    return replay


def run_aside(call: Callable[[], T], device: torch.device | None, runs: int) -> T:
    """Run `call` on a stream of its own, as torch wants it before a capture, and return what it gave last."""
    aside, now = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        for _ in range(runs):
            found = call()
    now.wait_stream(aside)
    return found


class CapturedCall:
    """`call` on inputs of one shape. Threads and streams may share it: they take turns with its memory."""

    def __init__(self, call: Callable[[Tensor], Tensor], x_TD: Tensor) -> None:
        """Captures `call` on a copy of `x_TD`; several times if its outputs are large."""
        self.x_TD = x_TD.clone()
        self._last = LastStream(current_stream(x_TD.device))
        self._outputs = Outputs(graphs_of(lambda: call(self.x_TD), _PoolOnGPU(x_TD.device)))
        self._turn = threading.Lock()

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The outputs, which later calls do not overwrite: see `Outputs`, also about reading them on other streams."""
        with self._turn:
            stream = current_stream(x_TD.device)
            self._last.pass_to(stream)
            self.x_TD.copy_(x_TD)
            return self._outputs(stream)

    def can_run(self) -> bool:
        """Not while someone captures or compiles the whole model: they need to see the work itself."""
        return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a layer has weights of its own, which the captured graph does not read."""
        return


class _PoolOnGPU:
    """See `outputs.Pool`."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._handle = device, torch.cuda.graph_pool_handle()

    def warm_up(self, call: Callable[[], Tensor]) -> Tensor:
        return run_aside(call, self._device, runs=2)

    def empty(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, device=self._device)

    def capture(self, call: Callable[[], Tensor]) -> Callable[[], Tensor]:
        return captured(call, self._device, runs=0, pool=self._handle)
