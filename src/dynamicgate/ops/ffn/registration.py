"""The ops `dynamicgate::ffn` and `dynamicgate::ffn_backward`: Triton kernels on CUDA, the reference elsewhere.

Beside y, `ffn` returns what its backward pass needs: hidden values, inputs of the activation, and the index of the
assignments. These tensors are as large as if all blocks were open: how many are is known only on the device, and asking
for it would make the host wait. Dense training saves as much.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.ffn.reference import reference_ffn
from dynamicgate.ops.ffn.saved import Saved
from dynamicgate.ops.ffn.weights import FFNWeights, map_weights

INPUTS = ("x", "factor", *FFNWeights._fields)  # of the op that have a gradient, in the order of its arguments
_TENSORS = (
    "Tensor x, Tensor factor, Tensor up, Tensor down, Tensor? value, Tensor? up_bias, Tensor? down_bias, "
    "Tensor? value_bias"
)

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    f"ffn({_TENSORS}, int block, str activation, str save_for, bool deterministic)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)
_library.define(
    f"ffn_backward(Tensor dy, {_TENSORS}, Tensor hidden, Tensor pre, Tensor val, Tensor index, int block, "
    "str activation, str gate_gradient, bool deterministic, bool[] wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)


@cache
def triton_missing() -> str:
    """Why the kernels cannot be used; empty where they can. The first call logs it."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        logging.getLogger("dynamicgate").warning(
            "gated layers run on torch, block by block: no Triton (%s); pip install 'dynamicgate[triton]'", error
        )
        return str(error)
    return ""


def kernels_run_on(x: Tensor) -> bool:
    """Whether Triton kernels can run on this tensor: on CUDA, and on the CPU if Triton interprets its kernels."""
    return (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and not triton_missing()


def register_for_inference(
    library: torch.library.Library, name: str, run: Callable[..., Tensor], shape: Callable[..., Tensor]
) -> None:
    """Register an op that has no gradient; asking for one raises an error that says so."""

    def no_gradient(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise RuntimeError(f"{name} is for inference and has no gradient; train with gated_ffn")

    for device in ("CPU", "CUDA"):
        library.impl(name, run, device)
    torch.library.register_fake(f"dynamicgate::{name}", shape, lib=library)
    torch.library.register_autograd(f"dynamicgate::{name}", no_gradient, lib=library)


def _empty_saved(x: Tensor, factor: Tensor, weights: FFNWeights, block: int, activation: str, save_for: str) -> Saved:
    """Uninitialised memory for what the gradients `save_for` ("", "sparse" or "dense") need."""
    nothing = x.new_empty(0)
    if not save_for or not kernels_run_on(x):
        return Saved(nothing, nothing.clone(), nothing.clone(), x.new_empty(0, dtype=torch.int32))
    from dynamicgate.ops.ffn.grouped_forward import saved_sizes  # here, because it imports Triton

    rows, length = saved_sizes(factor.shape[0], factor.shape[1], x.device)
    each = (rows, block) if save_for == "sparse" else (x.shape[0], weights.up.shape[0])
    no_pre = save_for == "sparse" and weights.value is None and ACTIVATIONS[activation].slope_from_output
    return Saved(
        x.new_empty(rows, block),
        nothing if no_pre else x.new_empty(each),
        nothing.clone() if weights.value is None else x.new_empty(each),
        x.new_empty(length, dtype=torch.int32),
    )


def _ffn(x: Tensor, factor: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    weights, (block, activation, save_for, deterministic) = FFNWeights(*rest[:6]), rest[6:]
    saved = _empty_saved(x, factor, weights, block, activation, save_for)
    if not kernels_run_on(x):
        return (reference_ffn(x, weights, factor, block=block, activation=activation), *saved)
    from dynamicgate.ops.ffn.grouped_forward import forward  # here, because it imports Triton

    if save_for == "dense":  # the dense up projection, for all blocks
        saved = saved._replace(pre=F.linear(x, weights.up, weights.up_bias))
        if weights.value is not None:
            saved = saved._replace(val=F.linear(x, weights.value, weights.value_bias))
    return (forward(x, factor, weights, block, activation, save_for, deterministic, saved), *saved)


def _ffn_shapes(x: Tensor, factor: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    weights, (block, activation, save_for, _) = FFNWeights(*rest[:6]), rest[6:]
    y = x.new_empty(x.shape[0], weights.down.shape[0])
    return (y, *_empty_saved(x, factor, weights, block, activation, save_for))


def _backward(dy: Tensor, x: Tensor, factor: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """The gradients of `INPUTS`; empty where not wanted. `down_bias` is not passed: its gradient does not need it."""
    weights, saved = FFNWeights(*rest[:6]), Saved(*rest[6:10])
    block, activation, gate_gradient, deterministic, wanted = rest[10:]
    rule = (block, activation, gate_gradient)
    names = {name for name, want in zip(INPUTS, wanted, strict=True) if want}
    if kernels_run_on(x):
        from dynamicgate.ops.ffn.grouped_backward import backward  # here, because it imports Triton

        found = backward(dy, x, factor, weights, *rule, deterministic, names, saved)
    else:
        found = _reference_gradients(dy, x, factor, weights, *rule, names)
    empty = _empty_gradients(x, factor, weights, wanted)
    return tuple(found.get(name, e) for name, e in zip(INPUTS, empty, strict=True))


def _reference_gradients(
    dy: Tensor,
    x: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    block: int,
    activation: str,
    gate_gradient: str,
    wanted: set[str],
) -> dict[str, Tensor]:
    tensors = {"x": x, "factor": factor, **weights._asdict()}
    leaves: dict[str, Any] = {
        name: t if t is None else t.detach().requires_grad_(name in wanted) for name, t in tensors.items()
    }
    asked = {name: leaf for name, leaf in leaves.items() if leaf is not None and leaf.requires_grad}
    with torch.enable_grad():
        layer = FFNWeights(*(leaves[name] for name in FFNWeights._fields))
        options: dict[str, Any] = {"block": block, "activation": activation, "gate_gradient": gate_gradient}
        y = reference_ffn(leaves["x"], layer, leaves["factor"], **options)
    given = torch.autograd.grad(y, list(asked.values()), dy, materialize_grads=True) if asked else ()
    found = dict(zip(asked, given, strict=True))
    return found | {"down_bias": dy.sum(0)} if "down_bias" in wanted else found


def _backward_shapes(_dy: Tensor, x: Tensor, factor: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    return _empty_gradients(x, factor, FFNWeights(*rest[:6]), rest[-1])


def _empty_gradients(x: Tensor, factor: Tensor, weights: FFNWeights, wanted: list[bool]) -> tuple[Tensor, ...]:
    """Uninitialised gradients of `INPUTS`; empty where not wanted."""
    up, (O, N) = weights.up.shape, weights.down.shape
    shapes = (x.shape, factor.shape, up, (O, N), up, (N,), (O,), (N,))
    return tuple(
        x.new_empty(shape if want else (0,), dtype=factor.dtype if name == "factor" else x.dtype)
        for name, shape, want in zip(INPUTS, shapes, wanted, strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, factor, *rest = inputs
    weights, ctx.options = FFNWeights(*rest[:6]), rest[6:]
    ctx.save_for_backward(x, factor, *weights._replace(down_bias=None), *output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[: len(INPUTS)])
    options = (None,) * len(ctx.options)
    if dy is None:
        return (None,) * len(INPUTS) + options
    found = torch.ops.dynamicgate.ffn_backward(dy.contiguous(), *ctx.saved_tensors, *ctx.options, wanted)
    return (*(t if want else None for t, want in zip(found, wanted, strict=True)), *options)


for _device in ("CPU", "CUDA"):
    _library.impl("ffn", _ffn, _device)
    _library.impl("ffn_backward", _backward, _device)
torch.library.register_fake("dynamicgate::ffn", _ffn_shapes, lib=_library)
torch.library.register_fake("dynamicgate::ffn_backward", _backward_shapes, lib=_library)
torch.library.register_autograd("dynamicgate::ffn", _gradients, setup_context=_setup, lib=_library)


def run_ffn(
    x: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    block: int,
    activation: str,
    gate_gradient: str,
    deterministic: bool,
) -> Tensor:
    """Call the op on checked rows, and save for a backward pass only if there will be one."""
    inputs = (x, factor, *weights)
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    factor = factor.float() if differentiated else factor
    weights = map_weights(weights, Tensor.contiguous)
    save_for = gate_gradient if differentiated else ""
    options = (block, activation, save_for, deterministic)
    y: Tensor = torch.ops.dynamicgate.ffn(x.contiguous(), factor.contiguous(), *weights, *options)[0]
    return y
