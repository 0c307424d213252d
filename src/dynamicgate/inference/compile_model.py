"""`compile`: from a trained model to a verified and timed plan."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.data.contract import inputs_of
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.pipeline import compile_on_cpu
from dynamicgate.inference.gpu.pipeline import compile_on_gpu
from dynamicgate.inference.profiling import MAX_ROWS
from dynamicgate.modules import unwrap


def compile(
    model: nn.Module,
    example: Any,
    *,
    batches: Sequence[int] = (1, 16, 256),
    calibration: Any | None = None,
    drop_never_open: bool = False,
    memory: float | None = None,
    threads: int | None = None,
    same_bits: bool = False,
    seconds: float = 8.0,
) -> CompiledModel:
    """Turn a trained model into one that gives the same outputs faster: on the CPU in float32 or, if `example` is on a
    CUDA GPU, there in its own precision.

    On the CPU, runs of Linear layers with gates, masks, activations and normalisation become chains. For each chain the
    candidates (dense in torch, dense panels, zero-skipping, gated by block or unit, sparse, gated and sparse) are timed
    on `example` at each of `batches`; a dense one is always among them. The outputs are compared with those of the
    model in evaluation mode, and a plan that differs is refused with a ValueError. What cannot become a chain stays in
    torch, and the plan says why. `model` is not changed. docs/gpu.md says what happens on a GPU.

    example: inputs as in use, a few hundred rows if possible: which units are open decides what is fastest. A tensor, a
        tuple (x, y), of which x is used, `dynamicgate.data.Arrays`, or batches (a DataLoader, say), of which only the
        first are read.
    batches: rows of a call (tokens on a GPU), ascending: one choice for each.
    calibration: inputs to look for blocks that never open (the example by default), given like `example` and read to
        the end. Such blocks are reported, and removed only with `drop_never_open`, which changes the outputs for inputs
        that would have opened them.
    memory: at most this multiple of the dense weights is held (different batch sizes may want different copies).
    threads: of torch, while timing.
    same_bits: run chains in our own kernels only, which give the same bits on any number of threads. The dense
        candidates leave matrix products to torch, which does not promise that.
    seconds: about how long all timing may take.

    drop_never_open, memory, threads and same_bits are for the CPU only.
    """
    model = unwrap(model)
    x = inputs_of(example, rows=MAX_ROWS).detach()
    _check_arguments(x, batches)
    calibration_x = x if calibration is None else inputs_of(calibration, rows=sys.maxsize).detach()
    if x.is_cuda:
        _refuse_cpu_options(drop_never_open=drop_never_open, memory=memory, threads=threads, same_bits=same_bits)
        body, plan = compile_on_gpu(model, x, batches=batches, calibration=calibration_x, seconds=seconds)
        return CompiledModel(body, plan)
    body, plan, nodes = compile_on_cpu(
        model,
        x,
        batches=batches,
        calibration=calibration_x,
        drop_never_open=drop_never_open,
        memory=memory,
        threads=threads,
        same_bits=same_bits,
        seconds=seconds,
    )
    return CompiledModel(body, plan, nodes)


def _check_arguments(x: Tensor, batches: Sequence[int]) -> None:
    if x.ndim < 2:
        raise ValueError(f"example must be rows of features (2 dimensions or more), received shape {tuple(x.shape)}")
    if not x.is_cuda and (x.dtype is not torch.float32 or x.device.type != "cpu"):
        raise ValueError(f"example must be on a CUDA GPU, or float32 on the cpu, received {x.dtype} on {x.device}")
    if not batches or list(batches) != sorted(set(batches)) or min(batches) < 1:
        raise ValueError(f"batches must be ascending numbers of rows, at least 1, received {tuple(batches)}")


def _refuse_cpu_options(*, drop_never_open: bool, memory: float | None, threads: int | None, same_bits: bool) -> None:
    given = {
        "drop_never_open": drop_never_open or None,
        "memory": memory,
        "threads": threads,
        "same_bits": same_bits or None,
    }
    wrong = [f"{name}={value!r}" for name, value in given.items() if value is not None]
    if wrong:
        raise ValueError(
            f"received {', '.join(wrong)} with an example on a GPU, but only plans on the CPU have these options: "
            "leave them out, or move model and example to the cpu"
        )
