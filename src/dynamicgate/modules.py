"""Small helpers for any `nn.Module`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def unwrap(model: nn.Module) -> nn.Module:
    """The module inside `DistributedDataParallel` and `torch.compile`."""
    parallel = isinstance(model, nn.parallel.DistributedDataParallel)
    inner = model.module if parallel else getattr(model, "_orig_mod", None)
    return unwrap(inner) if isinstance(inner, nn.Module) else model


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the block; every module gets its own mode back.

    Autocast keeps what it has cast as long as its own block lasts, and would show neither this block what was changed
    before it, nor what follows what was changed for it: calibration moves biases between such blocks.
    """
    modes = {m: m.training for m in model.modules()}
    model.eval()
    torch.clear_autocast_cache()
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        for module, training in modes.items():
            module.training = training


def keep_float32_(module: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Buffers as they were `before` the module was converted to another dtype, where it is now."""
    for name, value in before.items():
        now = getattr(module, name)
        if now.dtype != torch.float32:
            setattr(module, name, value.to(now.device, torch.float32))
