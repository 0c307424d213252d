"""Kernels over tiles of tokens that share a gate pattern: one list of open blocks serves the whole tile.

Up and down are products over that list, and y is written once, without partial outputs. This is faster where tokens
fall into a few patterns or most blocks are open. A block that is open for only some tokens of a tile is computed
for all of them and stored as 0 for the others. Hidden values are stored tile by tile, a tile's blocks in the order of
its list.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynamicgate.ops.ffn.tiles import (
    activate,
    rows_times,
    shared_pattern_is_cheaper,
    wait_for_previous_launch,
    weight_tile,
    whole_rounds,
)


@triton.jit
def store_hidden(z, v, f, hidden, bias, value_bias, at, ns, ACTIVATION: tl.constexpr, BIAS: tl.constexpr,
                 VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr):  # fmt: skip
    """hidden <- f * act(z + bias) [* (v + bias)], and 0 where f is 0, whatever was computed."""
    if BIAS:
        z += tl.load(bias + ns)[None, :].to(tl.float32)
    h = activate(z, ACTIVATION)
    if VALUE:
        if VALUE_BIAS:
            v += tl.load(value_bias + ns)[None, :].to(tl.float32)
        h *= v
    tl.store(hidden + at, tl.where(f != 0, h * f, 0.0).to(hidden.dtype.element_ty))


@triton.jit
def shared_pattern_tile(
    x, w, w2, bias, value_bias, factor, hidden, order, blocks, tile, position, T, D, N, G,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, TWICE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """hidden[row, position : position + COLUMNS] for the tokens of a tile, and with TWICE the next COLUMNS too."""
    row = tile * ROWS + tl.arange(0, ROWS)
    t = tl.load(order + row).to(tl.int64)
    t = tl.where(t < T, t, 0)
    listed = blocks + tile * G + position // BLOCK
    g = tl.load(listed)
    g2 = tl.load(listed + 1) if TWICE else g
    n = g * BLOCK + position % BLOCK
    n2 = g2 * BLOCK + position % BLOCK
    ns = n + tl.arange(0, COLUMNS)
    ns2 = n2 + tl.arange(0, COLUMNS)
    z, z2 = rows_times(
        tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32), x, D, t, w, w2, D, ns, n, ns2, n2,
        D, N, x, x, 0, 0, 0, DEPTH, True, EVEN, TMA, VALUE or TWICE, PRECISION, STAGES, 0, False,
    )  # fmt: skip
    at = row.to(tl.int64)[:, None] * N + position + tl.arange(0, COLUMNS)[None, :]
    f = tl.load(factor + t * G + g).to(tl.float32)[:, None]
    store_hidden(z, z2, f, hidden, bias, value_bias, at, ns, ACTIVATION, BIAS, VALUE, VALUE_BIAS)
    if TWICE:
        f2 = tl.load(factor + t * G + g2).to(tl.float32)[:, None]
        store_hidden(z2, z2, f2, hidden, bias, bias, at + COLUMNS, ns2, ACTIVATION, BIAS, False, False)


@triton.jit
def shared_pattern_up(
    x, w, w2, bias, value_bias, factor, hidden, tiles, total_blocks, order, lengths, blocks, T, D, N, G, M,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, ROW_COST: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """hidden[row, position] for the tokens of a tile and the blocks of its list. An item is COLUMNS units of a block;
    or, where these are a whole small block and there is no value, two blocks of the list, which share the rows of x."""
    if DEPENDENT:
        wait_for_previous_launch()
    if not shared_pattern_is_cheaper(total_blocks, tiles, BLOCK, ROW_COST):
        return
    TWICE: tl.constexpr = COLUMNS == BLOCK and COLUMNS <= 128 and not VALUE
    each: tl.constexpr = 2 * COLUMNS if TWICE else COLUMNS
    programs = tl.num_programs(0)
    m = tl.arange(0, WIDE)
    items_M = tl.cdiv(tl.load(lengths + m, mask=m < M, other=0) * BLOCK, each)
    ends_M = tl.cumsum(items_M, 0)
    items = tl.sum(items_M, 0)
    whole = whole_rounds(items, programs) if TWICE else items
    for item in range(tl.program_id(0), whole, programs):
        tile = tl.sum((ends_M <= item).to(tl.int32), 0)
        position = (item - tl.sum(tl.where(m < tile, items_M, 0), 0)) * each
        odd = position + each > tl.load(lengths + tile) * BLOCK  # the last block of the list has no partner
        if TWICE and odd:
            shared_pattern_tile(
                x, w, w2, bias, value_bias, factor, hidden, order, blocks, tile, position, T, D, N, G, BLOCK, ROWS,
                COLUMNS, DEPTH, ACTIVATION, BIAS, VALUE, VALUE_BIAS, EVEN, TMA, PRECISION, False, STAGES + TWICE,
            )  # fmt: skip
        else:
            shared_pattern_tile(
                x, w, w2, bias, value_bias, factor, hidden, order, blocks, tile, position, T, D, N, G, BLOCK, ROWS,
                COLUMNS, DEPTH, ACTIVATION, BIAS, VALUE, VALUE_BIAS, EVEN, TMA, PRECISION, TWICE, STAGES,
            )  # fmt: skip
    if TWICE:
        item = whole + tl.program_id(0) // 2
        if item < items:
            tile = tl.sum((ends_M <= item).to(tl.int32), 0)
            position = (item - tl.sum(tl.where(m < tile, items_M, 0), 0)) * each + tl.program_id(0) % 2 * COLUMNS
            if position < tl.load(lengths + tile) * BLOCK:
                shared_pattern_tile(
                    x, w, w2, bias, value_bias, factor, hidden, order, blocks, tile, position, T, D, N, G, BLOCK, ROWS,
                    COLUMNS, DEPTH, ACTIVATION, BIAS, VALUE, VALUE_BIAS, EVEN, TMA, PRECISION, False, STAGES + 1,
                )  # fmt: skip


@triton.jit
def shared_pattern_down(
    hidden, w, bias, y, tiles, total_blocks, order, lengths, blocks, T, N, G, O, M,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BIAS: tl.constexpr,
    EVEN: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, ROW_COST: tl.constexpr, STAGES: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """y[t, o] for the tokens of a tile. The sum over the blocks of its list stays in registers."""
    if DEPENDENT:
        wait_for_previous_launch()
    if not shared_pattern_is_cheaper(total_blocks, tiles, BLOCK, ROW_COST):
        return
    columns = tl.cdiv(O, COLUMNS)
    steps: tl.constexpr = BLOCK // DEPTH
    k = tl.arange(0, DEPTH)
    for item in range(tl.program_id(0), M * columns, tl.num_programs(0)):
        tile = item // columns
        row = tile * ROWS + tl.arange(0, ROWS)
        o = item % columns * COLUMNS
        os = o + tl.arange(0, COLUMNS)
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in tl.range(0, tl.load(lengths + tile) * steps, num_stages=STAGES):
            n = tl.load(blocks + tile * G + step // steps) * BLOCK + step % steps * DEPTH
            if TMA:
                rows = hidden.load([tile * ROWS, step * DEPTH])
            else:
                rows = tl.load(hidden + row.to(tl.int64)[:, None] * N + (step * DEPTH + k)[None, :])
            w_tile = weight_tile(w, N, n + k, os, n, o, N, O, True, EVEN, TMA)
            acc = tl.dot(rows, w_tile, acc, input_precision=PRECISION)
        if BIAS:
            acc += tl.load(bias + os, mask=os < O, other=0.0)[None, :].to(tl.float32)
        t = tl.load(order + row).to(tl.int64)
        at = y + t[:, None] * O + os[None, :]
        tl.store(at, acc.to(y.dtype.element_ty), mask=(t < T)[:, None] & (os < O)[None, :])
