"""The down projection of the grouped kernels, through partial outputs or by atomics; also the gradient of x."""

from __future__ import annotations

import triton
from torch import Tensor

from dynamicgate.ops.ffn import atomic_down, forward_kernels, tune
from dynamicgate.ops.ffn.grouped_launch import Job, descriptor, or_dummy, tma_usable
from dynamicgate.ops.ffn.index import Index
from dynamicgate.ops.ffn.tune import power_of_2

ATOMIC_COLUMNS = 512  # of the outputs at a time: for 16,384 tokens they take 16 MB of the L2 cache


def sum_down(
    job: Job,
    index: Index,
    products: list[tuple[Tensor, Tensor]],
    by_column: bool,
    bias: Tensor | None,
    y: Tensor,
) -> None:
    """y[t] = bias + the sum over the slots of t of a[slot] @ w[its block], for one (a, w) or two.

    by_column: w is stored [O, N]. One row of partial outputs for each slot goes through memory, a range of columns at a
    time: there may be T * G rows.
    """
    (a, w), (a2, w2), (T, O) = products[0], products[-1], y.shape
    two = len(products) == 2
    kernel = "down_two" if two else "down" if by_column else "down_transposed"
    tile, summing = job.tile(kernel), job.tile("reduce")
    columns = tune.most_bytes(y.device) // (job.slots * y.itemsize) // tile.columns * tile.columns
    columns = min(O, max(columns, tile.columns))
    memory, launch = y.new_empty(job.slots * columns), tune.dependent_launch(y.device)
    for first in range(0, O, columns):
        width = min(columns, O - first)
        partial = memory[: job.slots * width].view(job.slots, width)
        deep = job.even and job.block % tile.depth == 0
        tma = deep and tma_usable(tile, a, w, w2, partial)
        box = (tile.columns, tile.depth) if by_column else (tile.depth, tile.columns)
        stored = tile.columns // 2 if tile.halves else tile.columns
        run = max(1, tile.run * tile.depth // job.block) if tile.run else 0
        forward_kernels.down[job.grid(tile)](
            descriptor(a, job.rows, tile.depth, tma), descriptor(w, *box, tma),
            descriptor(a2, job.rows, tile.depth, tma and two), descriptor(w2, *box, tma and two),
            descriptor(partial, job.rows, stored, tma), index.tiles_M, index.total_blocks, job.units, w.shape[1],
            first, width, O, SHARED_PATTERN=job.shared_pattern, TWO=two, BY_COLUMN=by_column, TMA=tma,
            ROW_COST=tune.ROW_COST, RUN=run, HALVES=tile.halves,
            **job.sizes(tile, deep and width % tile.columns == 0), **launch,
        )  # fmt: skip
        at_once = min(summing.columns, power_of_2(width))
        forward_kernels.reduce[(T * triton.cdiv(width, at_once),)](
            partial, or_dummy(bias, y), y, index.opened_T, index.slots_TG, index.tiles_M, index.total_blocks,
            job.blocks, first, width, O, SHARED_PATTERN=job.shared_pattern, ROW_COST=tune.ROW_COST, BLOCK=job.block,
            COLUMNS=at_once, AT_ONCE=summing.depth, BIAS=bias is not None, num_warps=summing.warps, **launch,
        )  # fmt: skip


def add_down(job: Job, index: Index, products: list[tuple[Tensor, Tensor]], by_column: bool, y: Tensor) -> None:
    """y[t] += the sum over the slots of t of a[slot] @ w[its block], as `sum_down` but by atomics, in any order."""
    (a, w), (a2, w2), O = products[0], products[-1], y.shape[1]
    two, tile = len(products) == 2, job.tile("atomic_down")
    deep = job.even and job.block % tile.depth == 0
    tma = deep and tma_usable(tile, a, w, w2)
    box = (tile.columns, tile.depth) if by_column else (tile.depth, tile.columns)
    atomic_down.down_atomic[job.grid(tile)](
        descriptor(a, job.rows, tile.depth, tma), descriptor(w, *box, tma),
        descriptor(a2, job.rows, tile.depth, tma and two), descriptor(w2, *box, tma and two),
        y, index.spans_G2, index.tokens_P, index.tiles_M, index.total_blocks, job.units, w.shape[1], O,
        SHARED_PATTERN=job.shared_pattern, TWO=two, BY_COLUMN=by_column, TMA=tma, ROW_COST=tune.ROW_COST,
        AT_ONCE=max(1, ATOMIC_COLUMNS // tile.columns), **job.sizes(tile, deep and O % tile.columns == 0),
        **tune.dependent_launch(y.device),
    )  # fmt: skip
