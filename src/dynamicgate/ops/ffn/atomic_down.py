"""Down without a row for each pair: tiles are added to the outputs where they lie, by atomics of the GPU's L2 cache.

In which order that happens is not known, and every addition rounds. So two calls differ in the last bit, and
`tune.adds` allows it for few enough blocks only, and never where torch was asked for deterministic algorithms.
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynamicgate.ops.ffn.tiles import follow, like_wins, pair_step, pair_tile


@triton.jit
def add_products(
    acc, a, w, pair, row, g, N, w_stride, c, cs, w_columns,
    BLOCK: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr,
    PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """acc + a[pair] @ w[units of block g, cs]."""
    for unit in tl.range(0, BLOCK, DEPTH, num_stages=STAGES):
        acc = pair_step(
            acc, a, w, pair, row, g, unit, N, w_stride, c, cs, w_columns, BLOCK, DEPTH, BY_COLUMN, EVEN, TMA, PRECISION
        )
    return acc


@triton.jit
def down_adding(
    a, w, a2, w2, y, spans, tokens, tiles, like, N, w_stride, O,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BY_COLUMN: tl.constexpr,
    TWO: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr, SHARE: tl.constexpr,
    PARTIAL: tl.constexpr, AT_ONCE: tl.constexpr, STAGES: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """y[t] += a[pair] @ w[units of its block] over the pairs of t, and with TWO + a2 @ w2.

    AT_ONCE tiles of columns are done for all pairs before the next, so that this part of y stays in L2. Two programs
    share a multiprocessor: one adds while the other multiplies."""
    if AFTER:
        follow()
    if SHARE:
        if like_wins(like, tiles, BLOCK, PARTIAL):
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
        g, pair, t, exists = pair_tile(tiles, tokens, spans, rest // wide, ROWS)
        acc = add_products(
            tl.zeros((ROWS, COLUMNS), tl.float32), a, w, pair, row, g, N, w_stride, c, cs, O, BLOCK, DEPTH, BY_COLUMN,
            EVEN, TMA, PRECISION, STAGES,
        )  # fmt: skip
        if TWO:
            acc = add_products(
                acc, a2, w2, pair, row, g, N, w_stride, c, cs, O, BLOCK, DEPTH, BY_COLUMN, EVEN, TMA, PRECISION, STAGES
            )
        at = y + t[:, None] * O + cs[None, :]
        tl.atomic_add(at, acc.to(y.dtype.element_ty), mask=exists[:, None] & (cs < O)[None, :], sem="relaxed")
