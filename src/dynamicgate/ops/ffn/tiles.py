"""Building blocks of the grouped kernels: tiles of assignments, products with weights, activations.

An assignment is an open (token, block) combination; its slot is its row in the list that index.py sorts by block. A
tile is ROWS slots of one block. What belongs to assignments (hidden values, their gradients, partial outputs) is stored
in the order of the slots, one row each, so that a tile is contiguous. The last slots of a block may be empty: their
rows hold garbage that is never read. Offsets are 64-bit.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def wait_for_previous_launch():
    """Of a launch that started before the previous one had finished: wait for that one, and let the next one start."""
    cuda.gdc_wait()
    cuda.gdc_launch_dependents()


@triton.jit
def assignment_tile(tiles, tokens, spans, tile, ROWS: tl.constexpr):
    """Of one tile of assignments: its block, its slots, their tokens, and which slots are in use."""
    g = tl.load(tiles + 1 + tile)
    slot = tile * ROWS + tl.arange(0, ROWS)
    exists = slot < tl.load(spans + 2 * g + 1)
    return g, slot.to(tl.int64), tl.load(tokens + slot, mask=exists, other=0).to(tl.int64), exists


@triton.jit
def shared_pattern_is_cheaper(total_blocks, tiles, BLOCK: tl.constexpr, ROW_COST: tl.constexpr):
    """Whether tiles of tokens with a shared pattern cost less than tiles of assignments, in hidden values to compute.
    An assignment costs `ROW_COST` more than its values, for the partial output that is written and read again."""
    return tl.load(total_blocks).to(tl.int64) * BLOCK < tl.load(tiles).to(tl.int64) * (BLOCK + ROW_COST)


@triton.jit
def whole_rounds(items, programs):
    """How many items keep all programs busy. The rest is cut in half, if there is a program for each of the halves."""
    rest = items % programs
    return tl.where(2 * rest <= programs, items - rest, items)


@triton.jit
def weight_tile(w, stride, ks, ns, k, n, k_end, n_end, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr):
    """w[ks, ns] of a matrix that is stored [k, n], or [n, k] with BY_COLUMN; 0 outside it. With TMA, `w` is a
    descriptor and the tile starts at k, n."""
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
def initialize_outputs(y, bias, first, end, O, BIAS: tl.constexpr, WIDE: tl.constexpr):
    """y <- bias or 0: WIDE entries of the flat array from `first` on, up to `end`."""
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
    PRECISION: tl.constexpr, STAGES: tl.constexpr, INITIALIZE: tl.constexpr, Y_BIAS: tl.constexpr,
):  # fmt: skip
    """acc + a[row, :depth] @ w[:depth, ns], and with TWO the same rows times w2[:depth, ns2]. Each step also
    initializes INITIALIZE entries of y for down_atomic: nothing waits for these stores, so they are nearly free."""
    k = tl.arange(0, DEPTH)
    at = a + row[:, None] * stride + k[None, :]
    for first in tl.range(0, depth, DEPTH, num_stages=STAGES):
        if EVEN:
            rows = tl.load(at + first)
        else:
            rows = tl.load(at + first, mask=(first + k < depth)[None, :], other=0.0)
        tile = weight_tile(w, w_stride, first + k, ns, first, n, depth, n_end, BY_COLUMN, EVEN, TMA)
        acc = tl.dot(rows, tile, acc, input_precision=PRECISION)
        if TWO:
            tile2 = weight_tile(w2, w_stride, first + k, ns2, first, n2, depth, n_end, BY_COLUMN, EVEN, TMA)
            acc2 = tl.dot(rows, tile2, acc2, input_precision=PRECISION)
        if INITIALIZE > 0:
            initialize_outputs(y, y_bias, first_y + first // DEPTH * INITIALIZE, end_y, O, Y_BIAS, INITIALIZE)
    return acc, acc2


@triton.jit
def assignment_rows(a, slot, row, unit, units, k, BLOCK: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr):
    """a[slot, unit + k] of something stored in the order of the slots, the first of which is `row`; 0 past `units`."""
    if TMA:
        rows = a.load([row, unit])
    elif EVEN:
        rows = tl.load(a + slot[:, None] * BLOCK + (unit + k)[None, :])
    else:
        rows = tl.load(a + slot[:, None] * BLOCK + (unit + k)[None, :], mask=(unit + k < units)[None, :], other=0.0)
    return rows


@triton.jit
def assignment_step(
    acc, a, w, slot, row, g, unit, N, w_stride, c, cs, w_columns,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """acc + a[slot, unit : unit + DEPTH] @ w[these units of block g, cs]."""
    k = tl.arange(0, DEPTH)
    end = tl.minimum(g * BLOCK + BLOCK, N)
    n = g * BLOCK + unit
    rows = assignment_rows(a, slot, row, unit, end - g * BLOCK, k, BLOCK, EVEN, TMA)
    tile = weight_tile(w, w_stride, n + k, cs, n, c, end, w_columns, BY_COLUMN, EVEN, TMA)
    return tl.dot(rows, tile, acc, input_precision=PRECISION)


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    """The activation of z, in float32. The names are those of dynamicgate/activations.py."""
    if ACTIVATION == "relu":
        h = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    elif ACTIVATION == "gelu":
        h = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    elif ACTIVATION == "silu":
        h = z * tl.sigmoid(z)
    elif ACTIVATION == "gelu_tanh":
        h = z * tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    elif ACTIVATION == "quick_gelu":
        h = z * tl.sigmoid(1.702 * z)
    elif ACTIVATION == "relu2":
        r = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
        h = r * r
    else:
        h = z
    return h


@triton.jit
def slope(z, ACTIVATION: tl.constexpr):
    """The derivative of the activation at z, in float32."""
    if ACTIVATION == "relu":
        d = (z > 0).to(tl.float32)
    elif ACTIVATION == "gelu":
        d = 0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * 0.3989422804014327 * tl.exp(-0.5 * z * z)
    elif ACTIVATION == "silu":
        s = tl.sigmoid(z)
        d = s * (1.0 + z * (1.0 - s))
    elif ACTIVATION == "gelu_tanh":
        s = tl.sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
        d = s * (1.0 + z * (1.0 - s) * 1.5957691216057308 * (1.0 + 0.134145 * z * z))
    elif ACTIVATION == "quick_gelu":
        s = tl.sigmoid(1.702 * z)
        d = s * (1.0 + 1.702 * z * (1.0 - s))
    elif ACTIVATION == "relu2":
        d = 2.0 * tl.maximum(z, 0.0)
    else:
        d = 0.0 * z + 1.0
    return d
