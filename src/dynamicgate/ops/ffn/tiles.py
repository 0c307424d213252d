"""What the kernels for many tokens are made of: tiles of pairs, products with weights, activations.

A tile is ROWS pairs of one block. Whatever belongs to pairs (hidden values, their gradients, rows of output) lies in
the order of the pairs, one row each, so that a tile is contiguous; a tile's last rows may have no pair, are garbage,
and are read by nobody. Offsets are 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def follow():
    """Of a launch that started before the one ahead of it had ended: wait for that, and let the next one start."""
    cuda.gdc_wait()
    cuda.gdc_launch_dependents()


@triton.jit
def pair_tile(tiles, tokens, spans, tile, ROWS: tl.constexpr):
    """Of one tile of pairs: its block, the pairs, their tokens, and which rows exist."""
    g = tl.load(tiles + 1 + tile)
    pair = tile * ROWS + tl.arange(0, ROWS)
    exists = pair < tl.load(spans + 2 * g + 1)
    return g, pair.to(tl.int64), tl.load(tokens + pair, mask=exists, other=0).to(tl.int64), exists


@triton.jit
def like_wins(like, tiles, BLOCK: tl.constexpr, PARTIAL: tl.constexpr):
    """Whether tiles of like tokens are cheaper than tiles of pairs, both in hidden values to compute. A pair costs
    `PARTIAL` more, for its row of output that is written and read again."""
    return tl.load(like).to(tl.int64) * BLOCK < tl.load(tiles).to(tl.int64) * (BLOCK + PARTIAL)


@triton.jit
def whole_rounds(items, programs):
    """How many items leave no program idle: the rest is cut in half, if all halves find a program of their own."""
    rest = items % programs
    return tl.where(2 * rest <= programs, items - rest, items)


@triton.jit
def weights(w, stride, ks, ns, k, n, k_end, n_end, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr):
    """w[ks, ns] of a matrix stored [k, n], or [n, k] when BY_COLUMN; 0 past the ends. With TMA, `w` is a descriptor and
    the tile starts at k, n."""
    if TMA:
        if BY_COLUMN:
            tile = w.load([n, k]).T
        else:
            tile = w.load([k, n])
    else:
        if BY_COLUMN:
            at = w + ns.to(tl.int64)[None, :] * stride + ks[:, None]
        else:
            at = w + ks.to(tl.int64)[:, None] * stride + ns[None, :]
        if EVEN:
            tile = tl.load(at)
        else:
            tile = tl.load(at, mask=(ks < k_end)[:, None] & (ns < n_end)[None, :], other=0.0)
    return tile


@triton.jit
def start_outputs(y, bias, first, end, O, BIAS: tl.constexpr, WIDE: tl.constexpr):
    """y <- bias or 0, WIDE entries of the flat array from `first` on, as far as they come before `end`."""
    at = first + tl.arange(0, WIDE)
    if BIAS:
        ready = tl.load(bias + at % O).to(y.dtype.element_ty)
    else:
        ready = tl.zeros((WIDE,), y.dtype.element_ty)
    tl.store(y + at, ready, mask=at < end)


@triton.jit
def rows_times(
    acc, acc2, a, stride, row, w, w2, w_stride, ns, n, ns2, n2, depth, n_end, y, y_bias, first_y, end_y, O,
    DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr, TWO: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr, START: tl.constexpr, Y_BIAS: tl.constexpr,
):  # fmt: skip
    """acc + a[row, :depth] @ w[:depth, ns], and with TWO the same rows times w2[:depth, ns2]. On the way, START entries
    of y in each step are made ready to be added to: where nothing waits for the stores, they cost next to nothing."""
    k = tl.arange(0, DEPTH)
    at = a + row[:, None] * stride + k[None, :]
    for first in tl.range(0, depth, DEPTH, num_stages=STAGES):
        if EVEN:
            rows = tl.load(at + first)
        else:
            rows = tl.load(at + first, mask=(first + k < depth)[None, :], other=0.0)
        tile = weights(w, w_stride, first + k, ns, first, n, depth, n_end, BY_COLUMN, EVEN, TMA)
        acc = tl.dot(rows, tile, acc, input_precision=PRECISION)
        if TWO:
            tile2 = weights(w2, w_stride, first + k, ns2, first, n2, depth, n_end, BY_COLUMN, EVEN, TMA)
            acc2 = tl.dot(rows, tile2, acc2, input_precision=PRECISION)
        if START > 0:
            start_outputs(y, y_bias, first_y + first // DEPTH * START, end_y, O, Y_BIAS, START)
    return acc, acc2


@triton.jit
def pair_rows(a, pair, row, unit, units, k, BLOCK: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr):
    """a[pair, unit + k] of what lies in the order of the pairs, `row` being the first; 0 past `units`."""
    if TMA:
        rows = a.load([row, unit])
    elif EVEN:
        rows = tl.load(a + pair[:, None] * BLOCK + (unit + k)[None, :])
    else:
        rows = tl.load(a + pair[:, None] * BLOCK + (unit + k)[None, :], mask=(unit + k < units)[None, :], other=0.0)
    return rows


@triton.jit
def pair_step(
    acc, a, w, pair, row, g, unit, N, w_stride, c, cs, w_columns,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + a[pair, unit : unit + DEPTH] @ w[these units of block g, cs]."""
    k = tl.arange(0, DEPTH)
    end = tl.minimum(g * BLOCK + BLOCK, N)
    n = g * BLOCK + unit
    rows = pair_rows(a, pair, row, unit, end - g * BLOCK, k, BLOCK, EVEN, TMA)
    tile = weights(w, w_stride, n + k, cs, n, c, end, w_columns, BY_COLUMN, EVEN, TMA)
    return tl.dot(rows, tile, acc, input_precision=PRECISION)


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """phi(z) in float32."""
    if ACTIVATION == "relu":
        h = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        h = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    elif ACTIVATION == "silu":
        h = z * tl.sigmoid(z)
    else:
        h = z
    return h


@triton.jit
def slope(z, ACTIVATION: tl.constexpr):
    """phi'(z) in float32."""
    if ACTIVATION == "relu":
        d = (z > 0).to(tl.float32)
    elif ACTIVATION == "gelu":
        d = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)
    elif ACTIVATION == "silu":
        s = tl.sigmoid(z)
        d = s * (1.0 + z * (1.0 - s))
    else:
        d = 0.0 * z + 1.0
    return d
