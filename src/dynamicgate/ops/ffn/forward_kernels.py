"""Forward kernels over tiles of assignments: up to the hidden units, down to partial outputs, and their sum per token.

The number of tiles is known only on the device, so a fixed number of programs shares them. Shapes in names as in
index.py; R columns of output are computed at a time.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynamicgate.ops.ffn.tiles import (
    activate,
    assignment_step,
    assignment_tile,
    initialize_outputs,
    rows_times,
    shared_pattern_is_cheaper,
    wait_for_previous_launch,
    whole_rounds,
)


@triton.jit
def up_tile(
    x, w, w_value, bias, value_bias, factor, hidden, pre, val, spans, tokens, tiles, tile, unit, D, N, G, y, y_bias,
    first_y, end_y, O,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, SAVE: tl.constexpr, EVEN: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr, INITIALIZE: tl.constexpr, Y_BIAS: tl.constexpr,
):  # fmt: skip
    """hidden = factor * act(x up' + bias) [* (x value' + bias)]: a tile of assignments, units from `unit` on."""
    g, slot, t, exists = assignment_tile(tiles, tokens, spans, tile, ROWS)
    n = g * BLOCK + unit
    n_end = tl.minimum(g * BLOCK + BLOCK, N)
    ns = n + tl.arange(0, COLUMNS)
    z, v = rows_times(
        tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32), x, D, t, w, w_value, D, ns, n, ns,
        n, D, n_end, y, y_bias, first_y, end_y, O, DEPTH, True, EVEN, TMA, VALUE, PRECISION, STAGES, INITIALIZE, Y_BIAS,
    )  # fmt: skip
    at = slot[:, None] * BLOCK + unit + tl.arange(0, COLUMNS)[None, :]
    inside = exists[:, None] & (ns < n_end)[None, :]
    if BIAS:
        z += tl.load(bias + ns, mask=ns < n_end, other=0.0)[None, :].to(tl.float32)
    if SAVE:
        tl.store(pre + at, z.to(pre.dtype.element_ty), mask=inside)
    h = activate(z, ACTIVATION)
    if VALUE:
        if VALUE_BIAS:
            v += tl.load(value_bias + ns, mask=ns < n_end, other=0.0)[None, :].to(tl.float32)
        if SAVE:
            tl.store(val + at, v.to(val.dtype.element_ty), mask=inside)
        h *= v
    h *= tl.load(factor + t * G + g).to(tl.float32)[:, None]
    tl.store(hidden + at, h.to(hidden.dtype.element_ty), mask=inside)


@triton.jit
def up(
    x, w, w_half, w_value, w_value_half, bias, value_bias, factor, hidden, pre, val, spans, tokens, tiles, total_blocks,
    y, y_bias, T, D, N, G, O,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, SAVE: tl.constexpr, EVEN: tl.constexpr,
    TMA: tl.constexpr, PRECISION: tl.constexpr, SHARED_PATTERN: tl.constexpr, ROW_COST: tl.constexpr,
    STAGES: tl.constexpr, INITIALIZE: tl.constexpr, Y_BIAS: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Hidden values of the assignments: rows of x times the block's rows of w. INITIALIZE: entries of y, as a flat
    array, that each step of the products initializes for down_atomic; every program has its part of y."""
    if DEPENDENT:
        wait_for_previous_launch()
    if SHARED_PATTERN:
        if shared_pattern_is_cheaper(total_blocks, tiles, BLOCK, ROW_COST):
            return
    columns: tl.constexpr = (BLOCK + COLUMNS - 1) // COLUMNS
    half: tl.constexpr = COLUMNS // 2
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    items = tl.load(tiles) * columns
    whole = whole_rounds(items, programs)
    entries = tl.cast(T, tl.int64) * O
    part = tl.cdiv(entries, programs * 8) * 8  # aligned
    at_y = program * part
    end_y = tl.minimum(at_y + part, entries)
    per_tile = tl.cdiv(D, DEPTH) * INITIALIZE
    for item in range(program, whole, programs):
        up_tile(
            x, w, w_value, bias, value_bias, factor, hidden, pre, val, spans, tokens, tiles, item // columns,
            item % columns * COLUMNS, D, N, G, y, y_bias, at_y, end_y, O, BLOCK, ROWS, COLUMNS, DEPTH, ACTIVATION, BIAS,
            VALUE, VALUE_BIAS, SAVE, EVEN, TMA, PRECISION, STAGES, INITIALIZE, Y_BIAS,
        )  # fmt: skip
        at_y += per_tile
    item = 2 * whole + program
    if item < 2 * items:
        up_tile(
            x, w_half, w_value_half, bias, value_bias, factor, hidden, pre, val, spans, tokens, tiles,
            item // (2 * columns), item % (2 * columns) * half, D, N, G, y, y_bias, at_y, end_y, O, BLOCK, ROWS, half,
            DEPTH, ACTIVATION, BIAS, VALUE, VALUE_BIAS, SAVE, EVEN, TMA, PRECISION,
            STAGES * (ROWS + COLUMNS) // (ROWS + half), INITIALIZE, Y_BIAS,
        )  # fmt: skip
        at_y += per_tile
    if INITIALIZE > 0:
        for first in range(at_y, end_y, INITIALIZE):
            initialize_outputs(y, y_bias, first, end_y, O, Y_BIAS, INITIALIZE)


@triton.jit
def down_step(
    acc, a, w, a2, w2, partial, row, r, g, unit, last, N, w_stride, first_column, R, w_columns,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr,
    TWO: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """Add DEPTH units to the tile of `partial` at row, r. After the last units, store the tile and return zeros."""
    half: tl.constexpr = COLUMNS // 2
    c = first_column + r
    rs = r + tl.arange(0, COLUMNS)
    cs = first_column + rs
    slot = row + tl.arange(0, ROWS).to(tl.int64)
    acc = assignment_step(
        acc, a, w, slot, row, g, unit, N, w_stride, c, cs, w_columns, BLOCK, DEPTH, BY_COLUMN, EVEN, TMA, PRECISION
    )
    if TWO:
        acc = assignment_step(
            acc, a2, w2, slot, row, g, unit, N, w_stride, c, cs, w_columns, BLOCK, DEPTH, BY_COLUMN, EVEN, TMA,
            PRECISION,
        )  # fmt: skip
    if last:
        if TMA and HALVES:
            left, right = tl.split(tl.permute(tl.reshape(acc, (ROWS, 2, half)), (0, 2, 1)))
            partial.store([row, r], left.to(partial.dtype))
            partial.store([row, r + half], right.to(partial.dtype))
        elif TMA:
            partial.store([row, r], acc.to(partial.dtype))
        else:
            at = partial + slot[:, None] * R + rs[None, :]
            tl.store(at, acc.to(partial.dtype.element_ty), mask=(rs < R)[None, :])
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    return acc


@triton.jit
def down(
    a, w, a2, w2, partial, tiles, total_blocks, N, w_stride, first_column, R, w_columns,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr,
    TWO: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, SHARED_PATTERN: tl.constexpr,
    ROW_COST: tl.constexpr, RUN: tl.constexpr, HALVES: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """partial[slot, r] = a[slot] @ w[units of its block, first_column + r], and with TWO + a2 @ w2.

    One loop goes over several tiles of columns, so that the first rows and weights of the next tile are being loaded
    while this one is stored: with few units in a block there is little else to hide that latency. The loop covers RUN
    neighbouring tiles of the same rows, or with RUN = 0 all tiles of the program; then every step looks up the block of
    its tile."""
    if DEPENDENT:
        wait_for_previous_launch()
    if SHARED_PATTERN:
        if shared_pattern_is_cheaper(total_blocks, tiles, BLOCK, ROW_COST):
            return
    columns = tl.cdiv(R, COLUMNS)
    steps: tl.constexpr = (BLOCK + DEPTH - 1) // DEPTH
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    if RUN > 0:
        runs = tl.cdiv(columns, RUN)
        for item in range(program, tl.load(tiles) * runs, programs):
            row = item // runs * ROWS
            first = item % runs * RUN
            g = tl.load(tiles + 1 + item // runs)
            acc = tl.zeros((ROWS, COLUMNS), tl.float32)
            for step in tl.range(0, tl.minimum(RUN, columns - first) * steps, num_stages=STAGES):
                acc = down_step(
                    acc, a, w, a2, w2, partial, row, (first + step // steps) * COLUMNS, g, step % steps * DEPTH,
                    step % steps == steps - 1, N, w_stride, first_column, R, w_columns, BLOCK, ROWS, COLUMNS, DEPTH,
                    BY_COLUMN, TWO, EVEN, TMA, PRECISION, HALVES,
                )  # fmt: skip
    else:
        mine = tl.cdiv(tl.load(tiles) * columns - program, programs)
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for step in tl.range(0, mine * steps, num_stages=STAGES):
            item = program + step // steps * programs
            g = tl.load(tiles + 1 + item // columns)
            acc = down_step(
                acc, a, w, a2, w2, partial, item // columns * ROWS, item % columns * COLUMNS, g, step % steps * DEPTH,
                step % steps == steps - 1, N, w_stride, first_column, R, w_columns, BLOCK, ROWS, COLUMNS, DEPTH,
                BY_COLUMN, TWO, EVEN, TMA, PRECISION, HALVES,
            )  # fmt: skip


@triton.jit
def reduce(
    partial, bias, y, opened, slots, tiles, total_blocks, G, first_column, R, O,
    BLOCK: tl.constexpr, COLUMNS: tl.constexpr, AT_ONCE: tl.constexpr, BIAS: tl.constexpr, SHARED_PATTERN: tl.constexpr,
    ROW_COST: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """y[t, first_column + r] = bias + the sum of the rows of `partial` of token t, in the order of its blocks.
    Each program has COLUMNS of one token."""
    if DEPENDENT:
        wait_for_previous_launch()
    if SHARED_PATTERN:
        if shared_pattern_is_cheaper(total_blocks, tiles, BLOCK, ROW_COST):
            return
    columns = tl.cdiv(R, COLUMNS)
    t = (tl.program_id(0) // columns).to(tl.int64)
    r = tl.program_id(0) % columns * COLUMNS + tl.arange(0, COLUMNS)
    count = tl.load(opened + t)
    acc = tl.zeros((COLUMNS,), tl.float32)
    for first in range(0, count, AT_ONCE):
        for i in tl.static_range(AT_ONCE):  # one slot after the other: a vector of them would go through shared memory
            j = first + i
            slot = tl.load(slots + t * G + j, mask=j < count, other=0).to(tl.int64)
            acc += tl.load(partial + slot * R + r, mask=(j < count) & (r < R), other=0.0).to(tl.float32)
    if BIAS:
        acc += tl.load(bias + first_column + r, mask=r < R, other=0.0).to(tl.float32)
    tl.store(y + t * O + first_column + r, acc.to(y.dtype.element_ty), mask=r < R)
