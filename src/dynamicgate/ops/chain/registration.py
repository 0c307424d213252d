"""The op `dynamicgate::run_chain`: C++ kernels where they were built, else the reference on the unpacked chain."""

from __future__ import annotations

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, is_grad_enabled
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from dynamicgate.ops.chain.packing import Packed
from dynamicgate.ops.chain.reference import reference_chain
from dynamicgate.ops.chain.stage_packing import is_staged, unpack_staged
from dynamicgate.ops.chain.stages import reference_staged
from dynamicgate.ops.chain.unpacking import unpack
from dynamicgate.ops.native import dispatcher_bypass, missing

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "run_chain(Tensor x, Tensor weights, Tensor program, Tensor? factor, int outputs) -> Tensor",
    tags=[torch.Tag.pt2_compliant_tag],
)


def _in_torch(x: Tensor, weights: Tensor, program: Tensor, factor: Tensor | None, outputs: int) -> Tensor:
    if x.dtype != torch.float32:
        raise ValueError(f"x must be float32, received {x.dtype}")
    staged = unpack_staged(weights, program) if is_staged(program) else None
    layers = unpack(weights, program) if staged is None else list(staged.stages[0])
    given = sum(layer.blocks for layer in layers if layer.gate is None)
    if x.ndim != 2 or x.shape[1] != layers[0].weight.shape[1]:
        raise ValueError(
            f"x must have {layers[0].weight.shape[1]} features in each row, received a shape of {tuple(x.shape)}"
        )
    if (factor is not None) != bool(given) or (factor is not None and factor.shape != (x.shape[0], given)):
        raise ValueError("a chain with a block and no gate, and no other, needs factor [rows, blocks]")
    y = reference_chain(x, layers, factor) if staged is None else reference_staged(x, staged)
    return y.contiguous()


def _shape(x: Tensor, weights: Tensor, program: Tensor, factor: Tensor | None, outputs: int) -> Tensor:
    if torch.onnx.is_in_onnx_export():  # torch catches errors here, and ends in forty lines about a missing operator
        warnings.warn(
            "a compiled model runs in kernels that ONNX does not have: use dynamicgate.export.to_onnx(plan, example, "
            "path), which writes its layers as standard operators",
            stacklevel=2,
        )
    return x.new_empty(x.shape[0], outputs)


def _no_backward(ctx: Any, grad: Tensor) -> Any:
    raise RuntimeError("a compiled chain is for inference and has no derivatives: differentiate the model itself")


torch.library.register_fake("dynamicgate::run_chain", _shape, lib=_library)
torch.library.register_autograd("dynamicgate::run_chain", _no_backward, lib=_library)

if missing():
    _library.impl("run_chain", _in_torch, "CPU")
_run_chain = torch.ops.dynamicgate.run_chain.default
try:
    from torch._C import _get_tracing_state, _is_torch_function_mode_enabled, _len_torch_dispatch_stack
    from torch._C._autograd import _profiler_enabled
    from torch._C._functorch import peek_interpreter_stack

    _bypass = dispatcher_bypass()
except ImportError:  # a torch that cannot say whether anything observes the call: always use the op
    _bypass = None


def run_directly(x: Tensor, packed: Packed) -> Tensor | None:
    """`run` for plain rows without torch's dispatcher, or None where the op must answer: x is not a float32 matrix of
    the right width with contiguous rows, or is a negation that torch has not yet carried out, or something observes
    the call, from autograd to a profiler."""
    if (
        is_compiling()
        or _bypass is None
        or type(x) is not Tensor
        or (is_grad_enabled() and x.requires_grad)
        or x.is_neg()  # its memory holds the numbers before their sign changed
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or _len_torch_dispatch_stack()
        or _is_torch_function_mode_enabled()
        or _profiler_enabled()
        or _get_tracing_state() is not None
    ):
        return None
    return _bypass(x, packed[0], packed[1])


def run(
    x: Tensor, packed: Packed, factor_BG: Tensor | None = None, *, backend: Literal["torch"] | None = None
) -> Tensor:
    """Run a packed chain, plain or in stages, on float32 rows, in one op.

    factor_BG: for the layer that has a block and no gate: 0 closes a block, anything else opens it and multiplies.
    backend: "torch" does what a machine without a compiler does, even where the kernels were built.
    """
    rows = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    if factor_BG is None and backend is None:  # the common case first: at batch 1 every check counts
        y = run_directly(rows, packed)
        if y is None:
            y = _run_chain(rows, packed[0], packed[1], None, packed[2])
        return y if x.dim() == 2 else y.view(*x.shape[:-1], packed.outputs)
    factor = None if factor_BG is None else factor_BG.reshape(rows.shape[0], factor_BG.shape[-1]).contiguous()
    call = _in_torch if backend == "torch" else _run_chain
    return call(rows, packed.weights, packed.program, factor, packed.outputs).reshape(*x.shape[:-1], packed.outputs)
