"""Whether two tensors are a packed chain: asked once, when they come from a file, before anything runs them."""

from __future__ import annotations

import torch

from dynamicgate.ops import native
from dynamicgate.ops.chain.packing import Packed
from dynamicgate.ops.chain.stage_packing import is_staged, unpack_staged
from dynamicgate.ops.chain.unpacking import unpack


def check_packed(packed: Packed) -> None:
    """Raise ValueError unless every count, offset and index of the program stays within its weights and its lists.

    The kernels check their own input, in csrc/validate.cpp. Without kernels the chain is unpacked, as the torch backend
    will do at each call.
    """
    weights, program, outputs = packed
    kinds = ((weights, torch.float32), (program, torch.int32))
    if any(t.dtype != kind or t.ndim != 1 or not t.is_contiguous() or not t.is_cpu for t, kind in kinds):
        raise ValueError("a packed chain is one list of float32 weights and one of int32 words, on the CPU")
    problem = _problem_in_torch(packed) if native.missing() else native.problem_of(program, weights.numel())
    if problem:
        raise ValueError(f"this is not a packed chain: {problem}")
    if type(outputs) is not int or outputs != int(program[3]):
        raise ValueError(f"a packed chain has {int(program[3])} outputs, expected {outputs!r}")


def _problem_in_torch(packed: Packed) -> str:
    try:
        (unpack_staged if is_staged(packed.program) else unpack)(packed.weights, packed.program)
    except (ValueError, IndexError, KeyError, TypeError, RuntimeError, OverflowError, ZeroDivisionError) as error:
        return " ".join(str(error).split()) or type(error).__name__
    return ""
