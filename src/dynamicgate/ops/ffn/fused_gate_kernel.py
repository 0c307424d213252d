"""The Triton kernel of `fused_gate_activation`. It is bound by memory, so a program takes a long piece of one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dynamicgate.ops.ffn.tiles import activate

_LONGEST_PIECE = 4096  # units that a program takes


@triton.jit
def gate_activation_kernel(
    product, value, hidden, stride, units, pieces, cut, width,
    BLOCK: tl.constexpr, SCALE: tl.constexpr, ACTIVATION: tl.constexpr, VALUE: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """hidden_TN = factor * act(product_TM) [* value_TN]. The columns of product_TM after the units are the logits.

    SCALE says what open units are multiplied by. 0: by 1. 1: by p, where `width` is tau. 2: by how far the logit is
    above the cut, where `width` is soft_width, at most 1. 3: the same without that limit. Where a logit is NaN, so are
    its units.
    """
    token = (tl.program_id(0) // pieces).to(tl.int64)
    unit = tl.program_id(0) % pieces * PIECE + tl.arange(0, PIECE)
    mask = unit < units
    row = product + token * stride
    h = activate(tl.load(row + unit, mask, 0.0).to(tl.float32), ACTIVATION)
    z = tl.load(row + units + unit // BLOCK, mask, 0.0).to(tl.float32)
    if VALUE:
        h *= tl.load(value + token * units + unit, mask, 0.0).to(tl.float32)
    if SCALE == 1:
        h *= tl.sigmoid(z / width)
    elif SCALE == 2:
        h *= tl.minimum((z - cut) / width, 1.0)
    elif SCALE == 3:
        h *= (z - cut) / width
    closed = tl.where(z == z, 0.0, z)
    tl.store(hidden + token * units + unit, tl.where(z > cut, h, closed).to(hidden.dtype.element_ty), mask)


def launch(
    product: Tensor,
    value: Tensor | None,
    units: int,
    block: int,
    activation: str,
    cut: float,
    tau: float | None,
    soft_width: float | None,
    unbounded: bool,
) -> Tensor:
    """The hidden values, in one pass over `product`."""
    product = product if product.stride(1) == 1 else product.contiguous()
    hidden = product.new_empty(product.shape[0], units)
    piece = min(_LONGEST_PIECE, triton.next_power_of_2(units))
    pieces = triton.cdiv(units, piece)
    if hidden.numel():
        scale, width = (1, tau) if tau is not None else (0, 1.0)
        if soft_width is not None:
            scale, width = 2 + int(unbounded), soft_width
        gate_activation_kernel[(product.shape[0] * pieces,)](
            product, product if value is None else value.contiguous(), hidden, product.stride(0), units, pieces, cut,
            width, BLOCK=block, SCALE=scale, ACTIVATION=activation, VALUE=value is not None, PIECE=piece,
            num_warps=max(1, min(8, piece // 512)),
        )  # fmt: skip
    return hidden
