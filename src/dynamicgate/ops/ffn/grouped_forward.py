"""The forward pass of `gated_ffn` on Triton: which kernels run, and on what.

The host launches the same kernels whatever is open, and never waits for the device.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.ops.ffn import dense_gate_gradient, forward_kernels, shared_pattern, tune
from dynamicgate.ops.ffn import index as indexing
from dynamicgate.ops.ffn.grouped_down import add_down, sum_down
from dynamicgate.ops.ffn.grouped_launch import Job, descriptor, make_job, or_dummy, tma_usable
from dynamicgate.ops.ffn.index import Index
from dynamicgate.ops.ffn.saved import Saved
from dynamicgate.ops.ffn.tune import power_of_2
from dynamicgate.ops.ffn.weights import FFNWeights

INITIALIZED_PER_STEP = 2048  # entries of the outputs that a step of `up` initializes: one wide store of each thread


def saved_sizes(T: int, G: int, device: torch.device) -> tuple[int, int]:
    """The number of rows saved for the slots, and the length of the index."""
    rows = tune.rows(device)
    return indexing.slot_count(T, G, rows), indexing.buffer_length(T, G, rows)


def forward(
    x: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    block: int,
    activation: str,
    save_for: str,
    deterministic: bool,
    saved: Saved,
) -> Tensor:
    """y; and into `saved` what the gradients `save_for` ("", "sparse" or "dense") need."""
    T, O, N, G = x.shape[0], *weights.down.shape, factor.shape[1]
    y = x.new_empty(T, O)
    if not T:
        return y
    factor = factor.view(torch.uint8) if factor.dtype is torch.bool else factor
    job = make_job(x, factor, block, N, shared_pattern=not save_for, deterministic=deterministic)
    buffer = saved.index_buffer if save_for else x.new_empty(indexing.buffer_length(T, G, job.rows), dtype=torch.int32)
    index = indexing.build_index(factor, buffer, job.rows, job.shared_pattern)
    pattern_rows = indexing.pattern_tiles(T, job.rows) * job.rows if job.shared_pattern else 0
    memory = saved.hidden if save_for else x.new_empty(max(job.slots * block, pattern_rows * N))
    hidden = memory.view(-1)[: job.slots * block].view(job.slots, block)
    if save_for == "dense":
        tile = job.tile("elementwise")
        dense_gate_gradient.hidden_from_dense[job.grid(tile)](
            factor, saved.pre, saved.val, hidden, index.spans_G2, index.tokens_P, index.tiles_M, N, G,
            ACTIVATION=activation, VALUE=weights.value is not None, BLOCK=block, ROWS=job.rows, COLUMNS=tile.columns,
        )  # fmt: skip
    else:
        _up(job, index, x, factor, weights, activation, saved, hidden, y)
        if job.shared_pattern:
            rows = memory[: pattern_rows * N].view(pattern_rows, N)
            _shared_pattern(job, index, x, factor, weights, activation, rows, y)
    if job.atomic:
        if save_for == "dense":  # otherwise `up` has initialized y
            y.zero_() if weights.down_bias is None else y.copy_(weights.down_bias)
        add_down(job, index, [(hidden, weights.down)], True, y)
    else:
        sum_down(job, index, [(hidden, weights.down)], True, weights.down_bias, y)
    return y


def _options(weights: FFNWeights, activation: str) -> dict[str, object]:
    return {
        "ACTIVATION": activation,
        "VALUE": weights.value is not None,
        "BIAS": weights.up_bias is not None,
        "VALUE_BIAS": weights.value_bias is not None,
    }


def _up(
    job: Job,
    index: Index,
    x: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    activation: str,
    saved: Saved,
    hidden: Tensor,
    y: Tensor,
) -> None:
    """Hidden values of the assignments; and y initialized, if the down projection will add to it."""
    up, _, value, up_bias, down_bias, value_bias = weights
    (T, D), (N, G), O = x.shape, (job.units, job.blocks), y.shape[1]
    tile = job.tile("up" if value is None else "up_value")
    tma = tma_usable(tile, up, value)
    sides = [
        descriptor(or_dummy(w, up), columns, tile.depth, tma and w is not None)  # each costs the host some time
        for w in (up, value)
        for columns in (tile.columns, tile.columns // 2)
    ]
    even = job.even and D % tile.depth == 0 and job.block % tile.columns == 0
    forward_kernels.up[job.grid(tile)](
        x, *sides, or_dummy(up_bias, x), or_dummy(value_bias, x), factor, hidden, saved.pre, saved.val, index.spans_G2,
        index.tokens_P, index.tiles_M, index.total_blocks, y, or_dummy(down_bias, x), T, D, N, G, O,
        **_options(weights, activation), SAVE=bool(saved.pre.numel()), SHARED_PATTERN=job.shared_pattern, TMA=tma,
        ROW_COST=tune.ROW_COST, INITIALIZE=INITIALIZED_PER_STEP if job.atomic else 0, Y_BIAS=down_bias is not None,
        **job.sizes(tile, even), **tune.dependent_launch(x.device),
    )  # fmt: skip


def _shared_pattern(
    job: Job,
    index: Index,
    x: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    activation: str,
    hidden: Tensor,
    y: Tensor,
) -> None:
    """y from tiles of tokens with a shared pattern. These kernels return at once where the others are cheaper."""
    up, down, value, up_bias, down_bias, value_bias = weights
    (T, D), (N, G), O = x.shape, (job.units, job.blocks), y.shape[1]
    tiles, launch = indexing.pattern_tiles(T, job.rows), tune.dependent_launch(x.device)
    lists = (index.tiles_M, index.total_blocks, index.order_S, index.lengths_M, index.blocks_MG)
    tile = job.tile("shared_pattern_up" if value is None else "shared_pattern_up_value")
    tma = tma_usable(tile, up, value)
    sides = (descriptor(w, tile.columns, tile.depth, tma) for w in (up, or_dummy(value, up)))
    shared_pattern.shared_pattern_up[job.grid(tile)](
        x, *sides, or_dummy(up_bias, x), or_dummy(value_bias, x), factor, hidden, *lists, T, D, N, G, tiles,
        **_options(weights, activation), TMA=tma, ROW_COST=tune.ROW_COST, WIDE=max(256, power_of_2(tiles)),
        **job.sizes(tile, D % tile.depth == 0), **launch,
    )  # fmt: skip
    tile = job.tile("shared_pattern_down")
    tma = tma_usable(tile, hidden, down)
    shared_pattern.shared_pattern_down[job.grid(tile)](
        descriptor(hidden, tile.rows, tile.depth, tma), descriptor(down, tile.columns, tile.depth, tma),
        or_dummy(down_bias, x), y, *lists, T, N, G, O, tiles, BIAS=down_bias is not None, TMA=tma,
        ROW_COST=tune.ROW_COST, **job.sizes(tile, O % tile.columns == 0), **launch,
    )  # fmt: skip
