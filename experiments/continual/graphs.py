"""A training step as one CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dynamicgate.inference.gpu import cuda_graph


def captured(step: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], object]:
    """The same step, on a GPU as one CUDA graph: a step of small networks is mostly the time to start its kernels.

    state: all tensors that a step changes; they are put back after the steps that warming up takes. The step reads
    and writes the same tensors every time, so that whatever changes between steps is changed in place.
    """
    if not state[0].is_cuda:
        return step
    before = [value.clone() for value in state]
    replay = cuda_graph.captured(step, runs=3)
    with torch.no_grad():
        for value, old in zip(state, before, strict=True):
            value.copy_(old)
    return replay
