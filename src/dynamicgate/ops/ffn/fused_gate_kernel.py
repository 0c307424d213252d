"""The Triton kernel behind `close_hidden`: memory is all it waits for, so a program takes a long piece of one row."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from dynamicgate.ops.ffn.tiles import activate

_LONGEST = 4096  # units that a program takes


@triton.jit
def close_kernel(
    both, value, hidden, stride, units, pieces, cut, width,
    BLOCK: tl.constexpr, SCALE: tl.constexpr, ACTIVATION: tl.constexpr, VALUE: tl.constexpr, PIECE: tl.constexpr,
):  # fmt: skip
    """hidden_TN = factor * act(both_TM) [* value_TN], logits of the blocks in the columns behind the units of both_TM.

    SCALE: open units are multiplied by 0: 1, 1: p at the temperature `width`, 2: a ramp of this width above the cut.
    """
    token = (tl.program_id(0) // pieces).to(tl.int64)
    unit = tl.program_id(0) % pieces * PIECE + tl.arange(0, PIECE)
    here = unit < units
    row = both + token * stride
    h = activate(tl.load(row + unit, here, 0.0).to(tl.float32), ACTIVATION)
    z = tl.load(row + units + unit // BLOCK, here, 0.0).to(tl.float32)
    if VALUE:
        h *= tl.load(value + token * units + unit, here, 0.0).to(tl.float32)
    if SCALE == 1:
        h *= tl.sigmoid(z / width)
    elif SCALE == 2:
        h *= tl.minimum((z - cut) / width, 1.0)
    tl.store(hidden + token * units + unit, tl.where(z > cut, h, 0.0).to(hidden.dtype.element_ty), here)


def launch(
    both: Tensor,
    value: Tensor | None,
    units: int,
    block: int,
    activation: str,
    cut: float,
    tau: float | None,
    soft_width: float | None,
) -> Tensor:
    """One pass over `both`."""
    both = both if both.stride(1) == 1 else both.contiguous()
    hidden = both.new_empty(both.shape[0], units)
    piece = min(_LONGEST, triton.next_power_of_2(units))
    pieces = triton.cdiv(units, piece)
    if hidden.numel():
        scale, width = (2, soft_width) if soft_width is not None else (1, tau) if tau is not None else (0, 1.0)
        close_kernel[(both.shape[0] * pieces,)](
            both, both if value is None else value.contiguous(), hidden, both.stride(0), units, pieces, cut, width,
            BLOCK=block, SCALE=scale, ACTIVATION=activation, VALUE=value is not None, PIECE=piece,
            num_warps=max(1, min(8, piece // 512)),
        )  # fmt: skip
    return hidden
