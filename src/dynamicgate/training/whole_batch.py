"""The budget's step on a whole batch that is trained in several micro-batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from dynamicgate.budget import GateBudget
from dynamicgate.data.contract import Inputs, call
from dynamicgate.gating.recording import Usage, usage


@torch.no_grad()
def step_whole_batch(
    budget: GateBudget, model: nn.Module, inputs: Sequence[Inputs], progress: float, *, device: torch.device, bf16: bool
) -> Usage:
    """Take the step, and return what it saw. The budget must know what gates decide for all micro-batches before the
    penalty of the first, so they run once more, without gradients. The forward passes that follow draw the same random
    numbers and decide the same."""
    precision = torch.autocast(device.type, torch.bfloat16, enabled=bf16)
    with precision, _leaving_no_trace(model, device), usage(model) as used:
        for x in inputs:
            call(model, x)
    budget.step(used, progress)
    return used


@contextmanager
def _leaving_no_trace(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Random numbers and running statistics are afterwards what they were."""
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        yield
    for buffer, value in before:
        buffer.copy_(value)
