"""A call captured as a CUDA graph: replayed without running Python again, for one number of tokens."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


def captured(call: Callable[[], T], device: torch.device | None = None, *, runs: int = 2) -> Callable[[], T]:
    """`call`, which works on memory that stays where it is, as a CUDA graph. What it returns is overwritten by the next
    call. It runs a few times first, so that kernels are compiled and chosen before the capture. device: the current one
    by default."""
    aside, now = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    aside.wait_stream(now)
    with torch.cuda.stream(aside):
        for _ in range(runs):
            call()
    now.wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()

    def replay() -> T:
        graph.replay()
        return found

    return replay


class CapturedCall:
    """`call` on inputs of one shape. Threads and streams may share it: they take turns with its memory."""

    def __init__(self, call: Callable[[Tensor], Tensor], x_TD: Tensor) -> None:
        """Captures `call` on a copy of `x_TD`."""
        self.x_TD = x_TD.clone()
        self._last = torch.cuda.current_stream(x_TD.device)
        self._replay = captured(lambda: call(self.x_TD), x_TD.device)
        self._turn = threading.Lock()

    def __call__(self, x_TD: Tensor) -> Tensor:
        """The outputs, in memory of their own."""
        with self._turn:
            stream = torch.cuda.current_stream(x_TD.device)
            if stream != self._last:
                stream.wait_stream(self._last)
                self._last = stream
            self.x_TD.copy_(x_TD)
            return self._replay().clone()

    def can_run(self) -> bool:
        """Not while someone captures or compiles the whole model: they need to see the work itself."""
        return not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """A copy of a layer has weights of its own, which the captured graph does not read."""
        return
