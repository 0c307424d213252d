"""The op `dynamicgate::run`: C++ kernels where they were built, the reference on the unpacked chain where not."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from dynamicgate.ops.chain.pack import Packed
from dynamicgate.ops.chain.reference import reference
from dynamicgate.ops.chain.unpack import unpack
from dynamicgate.ops.kernels import missing, quick

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "run(Tensor x, Tensor weights, Tensor program, Tensor? factor, int outputs) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def _in_torch(x: Tensor, weights: Tensor, program: Tensor, factor: Tensor | None, outputs: int) -> Tensor:
    if x.dtype != torch.float32:
        raise ValueError(f"x must be float32, received {x.dtype}")
    layers = unpack(weights, program)
    given = sum(layer.blocks for layer in layers if layer.gate is None)
    if x.ndim != 2 or x.shape[1] != layers[0].weight.shape[1]:
        raise ValueError(
            f"x must have {layers[0].weight.shape[1]} features in each row, received a shape of {tuple(x.shape)}"
        )
    if (factor is not None) != bool(given) or (factor is not None and factor.shape != (x.shape[0], given)):
        raise ValueError("a chain with a block and no gate, and no other, needs factor [rows, blocks]")
    return reference(x, layers, factor).contiguous()


def _shape(x: Tensor, weights: Tensor, program: Tensor, factor: Tensor | None, outputs: int) -> Tensor:
    return x.new_empty(x.shape[0], outputs)


torch.library.register_fake("dynamicgate::run", _shape, lib=_library)

if missing():
    _library.impl("run", _in_torch, "CPU")
_run = torch.ops.dynamicgate.run.default
try:
    from torch._C import _get_tracing_state, _is_torch_function_mode_enabled, _len_torch_dispatch_stack
    from torch._C._autograd import _profiler_enabled

    _quick = quick()
except ImportError:  # another torch, which cannot be asked whether somebody watches: always take the op
    _quick = None


def _watched(x: Tensor) -> bool:
    """Whether anybody, from autograd to a profiler, must see the op."""
    return bool(
        (is_grad_enabled() and x.requires_grad)
        or _len_torch_dispatch_stack()
        or _is_torch_function_mode_enabled()
        or _profiler_enabled()
        or _get_tracing_state() is not None
    )


def run(
    x: Tensor, packed: Packed, factor_BG: Tensor | None = None, *, backend: Literal["torch"] | None = None
) -> Tensor:
    """Run a packed chain on float32 rows, in one op.

    factor_BG: openness of the layer that has a block and no gate: 0 is closed, anything else opens and multiplies.
    backend: "torch" takes the way of a machine without a compiler, whatever this one has.
    """
    if factor_BG is None and backend is None:  # the common case first: at batch 1 every check counts
        if not is_compiling() and _quick is not None and type(x) is Tensor and not _watched(x):
            y = _quick(x, packed[0], packed[1])
            if y is not None:
                return y
        if x.dim() == 2:
            return _run(x, packed[0], packed[1], None, packed[2])
    rows = x.reshape(-1, x.shape[-1])
    factor = None if factor_BG is None else factor_BG.reshape(rows.shape[0], factor_BG.shape[-1]).contiguous()
    call = _in_torch if backend == "torch" else _run
    return call(rows, packed.weights, packed.program, factor, packed.outputs).reshape(*x.shape[:-1], packed.outputs)
