"""The ops `dynamicgate::ffn` and `dynamicgate::ffn_backward`: Triton kernels on CUDA, the reference elsewhere.

`ffn` returns, beside y, what its backward needs: hidden values, what went into the activation, and the index of the
open (token, block) pairs. They are as large as if all blocks were open, because how many are is known on the device
only, and asking would make the host wait; dense training keeps as much.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.ffn.reference import reference
from dynamicgate.ops.ffn.saved import Kept

_library = torch.library.Library("dynamicgate", "FRAGMENT")
_library.define(
    "ffn(Tensor x, Tensor up, Tensor down, Tensor factor, Tensor? up_bias, Tensor? down_bias, Tensor? value, "
    "Tensor? value_bias, int block, str activation, str keep, bool in_order) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)
_library.define(
    "ffn_backward(Tensor dy, Tensor x, Tensor up, Tensor down, Tensor factor, Tensor? up_bias, Tensor? value, "
    "Tensor? value_bias, Tensor hidden, Tensor pre, Tensor val, Tensor index, int block, str activation, "
    "str gradient, bool in_order, bool[] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=[torch.Tag.pt2_compliant_tag],
)


@cache
def triton_missing() -> str:
    """Why the kernels cannot be used; empty where they can. The first call says so through logging."""
    try:
        import triton  # noqa: F401
    except ImportError as error:
        logging.getLogger("dynamicgate").warning(
            "gated layers run on torch, block by block: no Triton (%s); pip install 'dynamicgate[triton]'", error
        )
        return str(error)
    return ""


def serves(x: Tensor) -> bool:
    """Whether Triton kernels run where this tensor is: on CUDA, and on the CPU where Triton interprets them."""
    return (x.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") and not triton_missing()


def register_for_inference(
    library: torch.library.Library, name: str, run: Callable[..., Tensor], shape: Callable[..., Tensor]
) -> None:
    """An op of ours that has no gradient, and says so."""

    def no_gradient(ctx: Any, *gradients: Tensor) -> NoReturn:
        raise RuntimeError(f"{name} is for inference and has no gradient; train with gated_ffn")

    for device in ("CPU", "CUDA"):
        library.impl(name, run, device)
    torch.library.register_fake(f"dynamicgate::{name}", shape, lib=library)
    torch.library.register_autograd(f"dynamicgate::{name}", no_gradient, lib=library)


def _kernels(x: Tensor) -> ModuleType | None:
    """The Triton kernels where they serve this tensor."""
    if not serves(x):
        return None
    from dynamicgate.ops.ffn import grouped  # here: it imports Triton

    return grouped


def _empty_kept(
    x: Tensor, up: Tensor, factor: Tensor, value: Tensor | None, block: int, activation: str, keep: str
) -> Kept:
    """Uninitialised memory for what `keep` ("", "sparse" or "exact") asks for."""
    kernels, nothing = _kernels(x), x.new_empty(0)
    if kernels is None or not keep:
        return Kept(nothing, nothing.clone(), nothing.clone(), x.new_empty(0, dtype=torch.int32))
    rows, length = kernels.kept_sizes(*factor.shape, x.device)
    each = (rows, block) if keep == "sparse" else (x.shape[0], up.shape[0])
    derivable = keep == "sparse" and value is None and ACTIVATIONS[activation].slope_from_output
    return Kept(
        x.new_empty(rows, block),
        nothing if derivable else x.new_empty(each),
        nothing.clone() if value is None else x.new_empty(each),
        x.new_empty(length, dtype=torch.int32),
    )


def _ffn(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    factor: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    value: Tensor | None,
    value_bias: Tensor | None,
    block: int,
    activation: str,
    keep: str,
    in_order: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    kernels = _kernels(x)
    kept = _empty_kept(x, up, factor, value, block, activation, keep)
    if kernels is None:
        y = reference(
            x, up, down, factor, block=block, activation=activation, up_bias_N=up_bias, down_bias_O=down_bias,
            value_ND=value, value_bias_N=value_bias,
        )  # fmt: skip
    else:
        if keep == "exact":  # the dense up projection, for all blocks
            pre = F.linear(x, up, up_bias)
            kept = kept._replace(pre=pre, val=kept.val if value is None else F.linear(x, value, value_bias))
        biases = (up_bias, down_bias)
        y = kernels.forward(x, up, down, factor, *biases, value, value_bias, block, activation, keep, in_order, kept)
    return (y, *kept)


def _ffn_shapes(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    factor: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    value: Tensor | None,
    value_bias: Tensor | None,
    block: int,
    activation: str,
    keep: str,
    in_order: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (x.new_empty(x.shape[0], down.shape[0]), *_empty_kept(x, up, factor, value, block, activation, keep))


def _backward(
    dy: Tensor,
    x: Tensor,
    up: Tensor,
    down: Tensor,
    factor: Tensor,
    up_bias: Tensor | None,
    value: Tensor | None,
    value_bias: Tensor | None,
    hidden: Tensor,
    pre: Tensor,
    val: Tensor,
    index: Tensor,
    block: int,
    activation: str,
    gradient: str,
    in_order: bool,
    wanted: list[bool],
) -> tuple[Tensor, ...]:
    """Gradients in the order of the first eight arguments of `ffn`; empty where not `wanted`."""
    kernels = _kernels(x)
    if kernels is not None:
        kept = Kept(hidden, pre, val, index)
        found = kernels.backward(dy, x, up, down, factor, value, block, activation, gradient, in_order, wanted, kept)
    else:
        leaves = [
            None if t is None else t.detach().requires_grad_(want)
            for t, want in zip((x, up, down, factor, up_bias, value, value_bias), _but_down_bias(wanted), strict=True)
        ]
        asked = [leaf for leaf in leaves if leaf is not None and leaf.requires_grad]
        with torch.enable_grad():
            y = reference(
                leaves[0], leaves[1], leaves[2], leaves[3], block=block, activation=activation,  # type: ignore[arg-type]
                up_bias_N=leaves[4], value_ND=leaves[5], value_bias_N=leaves[6], gradient=gradient,
            )  # fmt: skip
        given = iter(torch.autograd.grad(y, asked, dy, materialize_grads=True) if asked else ())
        found = [None if leaf is None or not leaf.requires_grad else next(given) for leaf in leaves]
        found.insert(5, dy.sum(0) if wanted[5] else None)
    empty = _gradients_of(x, up, down, factor, wanted)
    return tuple(e if t is None else t for t, e in zip(found, empty, strict=True))


def _but_down_bias(wanted: list[bool]) -> list[bool]:
    return [*wanted[:5], *wanted[6:]]


def _backward_shapes(
    _dy: Tensor, x: Tensor, up: Tensor, down: Tensor, factor: Tensor, *rest: Any
) -> tuple[Tensor, ...]:
    return _gradients_of(x, up, down, factor, wanted=rest[-1])


def _gradients_of(x: Tensor, up: Tensor, down: Tensor, factor: Tensor, wanted: list[bool]) -> tuple[Tensor, ...]:
    """Uninitialised gradients; empty where not wanted."""
    N, O = up.shape[0], down.shape[0]
    shapes = (x.shape, up.shape, down.shape, factor.shape, (N,), (O,), up.shape, (N,))
    return tuple(
        x.new_empty(shape if want else (0,), dtype=factor.dtype if i == 3 else x.dtype)
        for i, (shape, want) in enumerate(zip(shapes, wanted, strict=True))
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, up, down, factor, up_bias, _, value, value_bias, *ctx.options = inputs
    ctx.save_for_backward(x, up, down, factor, up_bias, value, value_bias, *output[1:])
    ctx.set_materialize_grads(False)


def _gradients(ctx: Any, dy: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    wanted = list(ctx.needs_input_grad[:8])
    if dy is None:
        return (None,) * 12
    found = torch.ops.dynamicgate.ffn_backward(dy.contiguous(), *ctx.saved_tensors, *ctx.options, wanted)
    return (*(t if want else None for t, want in zip(found, wanted, strict=True)), *(None for _ in ctx.options))


for _device in ("CPU", "CUDA"):
    _library.impl("ffn", _ffn, _device)
    _library.impl("ffn_backward", _backward, _device)
torch.library.register_fake("dynamicgate::ffn", _ffn_shapes, lib=_library)
torch.library.register_fake("dynamicgate::ffn_backward", _backward_shapes, lib=_library)
torch.library.register_autograd("dynamicgate::ffn", _gradients, setup_context=_setup, lib=_library)


def run(
    tensors: list[Tensor | None], factor_TG: Tensor, block: int, activation: str, gradient: str, in_order: bool
) -> Tensor:
    """Call the op on checked rows; keep what a backward pass needs only where there will be one."""
    x, up, down, up_bias, down_bias, value, value_bias = tensors
    inputs = (x, up, down, factor_TG, up_bias, down_bias, value, value_bias)
    differentiated = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in inputs)
    if differentiated:
        inputs = (x, up, down, factor_TG.float(), up_bias, down_bias, value, value_bias)
    contiguous = (t if t is None else t.contiguous() for t in inputs)
    keep = gradient if differentiated else ""
    y: Tensor = torch.ops.dynamicgate.ffn(*contiguous, block, activation, keep, in_order)[0]
    return y
