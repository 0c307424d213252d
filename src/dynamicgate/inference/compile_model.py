"""`compile`: from a trained model to a verified and timed plan."""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.data.by_name import inputs_by_name
from dynamicgate.data.schema import put_schema_, schema_of
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.pipeline import compile_on_cpu
from dynamicgate.inference.decoder_parts import cache_kind
from dynamicgate.inference.gpu.pipeline import compile_on_gpu
from dynamicgate.inference.language.calls import Inputs, inputs_of_call
from dynamicgate.inference.language.layer_by_layer import runs_by_layer
from dynamicgate.inference.language.pipeline import Compiled, compile_language
from dynamicgate.inference.language.rounding import INT8
from dynamicgate.inference.profiling import MAX_ROWS
from dynamicgate.modules import unwrap

BATCHES = (1, 16, 256)
MOST_BATCH = 1 << 24  # rows
MOST_ROWS = 256  # of an example for a model that cannot be traced, which is run as a whole in float64


def compile(
    model: nn.Module,
    example: Any,
    *,
    batches: Sequence[int] = BATCHES,
    calibration: Any | None = None,
    drop_never_open: bool = False,
    memory: float | None = None,
    threads: int | None = None,
    same_bits: bool = False,
    seconds: float = 8.0,
    weights: str | None = None,
) -> CompiledModel:
    """Turn a trained model into one that gives the same outputs faster: on the CPU in float32 or, if `example` is on a
    CUDA GPU, there in its own precision.

    On the CPU, runs of Linear layers with gates, masks, activations and normalisation become chains. For each chain the
    candidates (dense in torch, dense panels, zero-skipping, gated by block or unit, sparse, gated and sparse) are timed
    on `example` at each of `batches`; a dense one is always among them. The outputs are compared with those of the
    model in evaluation mode, and a plan that differs is refused with a ValueError. What cannot become a chain stays in
    torch, and the plan says why. `model` is not changed. docs/gpu.md says what happens on a GPU.

    A language model, given an example of tokens, runs natively as a whole where it is known how (attention with a
    cache, norms, gated feed-forward layers, head: Hugging Face models of known kinds and models that have
    `decoder_parts`), else its gated feed-forward layers do, one by one, as in every model that cannot be traced. It is
    verified in float64 on tokens that it generates, timed as a whole, and called like the model, `generate` included.

    example: inputs as in use, a few hundred rows if possible: which units are open decides what is fastest. A tensor, a
        tuple (x, y), of which x is used, `dynamicgate.data.Arrays`, or batches (a DataLoader, say), of which only the
        first are read; a DataFrame, by name where the model carries a schema, which the compiled one then carries too.
        For a language model, one call: tokens, a dict of keyword arguments, or a pair of a tuple of arguments and a
        dict. On a GPU of one tensor, which the model reads first.
    batches: rows of a call (tokens on a GPU), ascending: one choice for each.
    calibration: inputs to look for blocks that never open (the example by default), given like `example` and read to
        the end. Such blocks are reported, and removed only with `drop_never_open`, which changes the outputs for inputs
        that would have opened them.
    memory: at most this multiple of the dense weights is held (different batch sizes may want different copies).
    threads: of torch, while timing.
    same_bits: run chains in our own kernels only, which give the same bits on any number of threads. The dense
        candidates leave matrix products to torch, which does not promise that.
    seconds: about how long all timing may take.
    weights: "int8" lets a language model that runs natively as a whole round its weights, each output with a scale,
        where that is faster; one token then reads a quarter of the bytes. Outputs change, and the plan says by how much
        on the example. By default nothing is rounded.

    drop_never_open, memory, threads and same_bits are for the CPU only.
    """
    if weights not in (None, INT8):
        raise ValueError(f"weights must be None or {INT8!r}, received {weights!r:.40}")
    model = unwrap(model)
    call = inputs_of_call(example)
    if call is not None and call.tensors and not any(tensor.is_cuda for tensor in call.tensors):
        given = {"calibration": calibration, **cpu_options(drop_never_open, memory, same_bits)}
        if cache_kind(model) is not None and tuple(batches) != BATCHES:
            given["batches"] = batches
        refuse_options(given, "an example of tokens", "leave them out")
        int8 = weights is not None
        return _compiled(
            model, compile_language(model, call, batches=batches, threads=threads, seconds=seconds, int8=int8)
        )
    if weights is not None:
        raise ValueError("weights='int8' is for language models on the CPU: give an example of tokens, or leave it out")
    if call is not None and call.tensors:
        example = _first_argument(model, call)
    schema = schema_of(model)
    x = inputs_by_name(example, schema, rows=MAX_ROWS).detach()
    _check_arguments(x, batches, seconds, memory)
    options = {"calibration": calibration, **cpu_options(drop_never_open, memory, same_bits)}
    if not x.is_cuda and all(value is None for value in options.values()) and runs_by_layer(model):
        found = Inputs((x[:MOST_ROWS],))
        return _compiled(model, compile_language(model, found, batches=batches, threads=threads, seconds=seconds))
    calibration_x = x if calibration is None else inputs_by_name(calibration, schema, rows=sys.maxsize).detach()
    if x.is_cuda:
        given = {**cpu_options(drop_never_open, memory, same_bits), "threads": threads}
        refuse_options(given, "an example on a GPU", "leave them out, or move model and example to the cpu")
        body, plan = compile_on_gpu(model, x, batches=batches, calibration=calibration_x, seconds=seconds)
        return _with_schema(CompiledModel(body, plan), model)
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
    return _with_schema(CompiledModel(body, plan, nodes), model)


def _first_argument(model: nn.Module, call: Inputs) -> Tensor:
    """The tensor of a call on a GPU, where plans are made for calls with nothing else."""
    first = next(iter(inspect.signature(model.forward).parameters), None)
    if len(call.args) + len(call.kwargs) == 1 and list(call.kwargs) in ([], [first]):
        return call.tensors[0]
    names = [*(f"argument {i}" for i in range(1, len(call.args) + 1)), *map(repr, call.kwargs)]
    raise ValueError(
        f"on a GPU an example is the one tensor that the model reads first ({first!r}), received {', '.join(names)}: "
        "give that tensor. The compiled model may be called with more, such as a mask, and runs layer by layer then"
    )


def _check_arguments(x: Tensor, batches: Sequence[int], seconds: float, memory: float | None) -> None:
    if x.ndim < 2:
        raise ValueError(f"example must be rows of features (2 dimensions or more), received shape {tuple(x.shape)}")
    if not x.is_cuda and (x.dtype is not torch.float32 or x.device.type != "cpu"):
        raise ValueError(f"example must be on a CUDA GPU, or float32 on the cpu, received {x.dtype} on {x.device}")
    whole = all(isinstance(rows, Integral) for rows in batches)
    if not batches or not whole or list(batches) != sorted(set(batches)) or min(batches) < 1:
        raise ValueError(f"batches must be ascending numbers of rows, at least 1, received {tuple(batches)}")
    if max(batches) > MOST_BATCH:
        raise ValueError(f"batches of more than {MOST_BATCH:,} rows are not timed, received {max(batches)}")
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds is about how long timing may take, 0 or more, received {seconds}")
    if memory is not None and not memory > 0:
        raise ValueError(f"memory is a multiple of the dense weights and must be positive, received {memory}")


def cpu_options(drop_never_open: bool, memory: float | None, same_bits: bool) -> dict[str, Any]:
    """The options of chains on the CPU; None where they are not given."""
    return {"drop_never_open": drop_never_open or None, "memory": memory, "same_bits": same_bits or None}


def refuse_options(given: Mapping[str, Any], example: str, remedy: str) -> None:
    """Raise ValueError if any option is given that means nothing with such an example."""
    wrong = [f"{name}={value!r:.40}" for name, value in given.items() if value is not None]
    if wrong:
        raise ValueError(
            f"received {', '.join(wrong)} with {example}, but only chains on the CPU have these options: {remedy}"
        )


def _compiled(model: nn.Module, found: Compiled) -> CompiledModel:
    return _with_schema(CompiledModel(found.body, found.plan, described=found.described), model)


def _with_schema(compiled: CompiledModel, model: nn.Module) -> CompiledModel:
    """It reads and answers what the model does, by the same names."""
    put_schema_(compiled, schema_of(model))
    return compiled
