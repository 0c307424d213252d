"""The down projection without partial outputs: tiles are added directly to the outputs, by atomics of the L2 cache.

The order of the additions is not fixed and every one of them rounds, so two calls may differ in the last bits.
`tune.uses_atomics` allows it only for few enough blocks, and never if torch was asked for deterministic algorithms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynamicgate.ops.ffn.tiles import (
    assignment_step,
    assignment_tile,
    shared_pattern_is_cheaper,
    wait_for_previous_launch,
)


@triton.jit
def add_products(
    acc, a, w, slot, row, g, N, w_stride, c, cs, w_columns,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """acc + a[slot] @ w[units of block g, cs]."""
    for unit in tl.range(0, BLOCK, DEPTH, num_stages=STAGES):
        acc = assignment_step(
            acc, a, w, slot, row, g, unit, N, w_stride, c, cs, w_columns, BLOCK, DEPTH, BY_COLUMN, EVEN, TMA, PRECISION
        )
    return acc


@triton.jit
def down_atomic(
    a, w, a2, w2, y, spans, tokens, tiles, total_blocks, N, w_stride, O,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr,
    TWO: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, SHARED_PATTERN: tl.constexpr,
    ROW_COST: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """y[t] += a[slot] @ w[units of its block] over the assignments of t, and with TWO + a2 @ w2.

    AT_ONCE tiles of columns are finished for all assignments before the next ones, so that this part of y stays in L2.
    Two or three programs share a multiprocessor, so that one adds while another multiplies."""
    if DEPENDENT:
        wait_for_previous_launch()
    if SHARED_PATTERN:
        if shared_pattern_is_cheaper(total_blocks, tiles, BLOCK, ROW_COST):
            return
    columns = tl.cdiv(O, COLUMNS)
    count = tl.load(tiles)
    for item in range(tl.program_id(0), count * columns, tl.num_programs(0)):
        first = item // (count * AT_ONCE) * AT_ONCE
        wide = tl.minimum(AT_ONCE, columns - first)
        rest = item - first * count
        c = (first + rest % wide) * COLUMNS
        cs = c + tl.arange(0, COLUMNS)
        row = rest // wide * ROWS
        g, slot, t, exists = assignment_tile(tiles, tokens, spans, rest // wide, ROWS)
        acc = add_products(
            tl.zeros((ROWS, COLUMNS), tl.float32), a, w, slot, row, g, N, w_stride, c, cs, O, BLOCK, DEPTH, BY_COLUMN,
            EVEN, TMA, PRECISION, STAGES,
        )  # fmt: skip
        if TWO:
            acc = add_products(
                acc, a2, w2, slot, row, g, N, w_stride, c, cs, O, BLOCK, DEPTH, BY_COLUMN, EVEN, TMA, PRECISION, STAGES
            )
        at = y + t[:, None] * O + cs[None, :]
        tl.atomic_add(at, acc.to(y.dtype.element_ty), mask=exists[:, None] & (cs < O)[None, :], sem="relaxed")
