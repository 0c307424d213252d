"""Lists the assignments, that is the open (token, block) combinations, on the device: the host never knows how many.

This is a counting sort in two launches; two more group the tokens by their gate pattern. Nothing here depends on the
order in which programs run, so the lists are the same every time.

Shapes in names: T tokens, G blocks, Q groups of blocks, P slots (one for each assignment, padded to whole tiles), M
tiles, S positions of tokens sorted by pattern (padded to whole tiles), C chunks of tokens, W counters of a chunk.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.tiles import wait_for_previous_launch

CHUNK = tl.constexpr(128)  # tokens that one program counts and sorts
GROUP = tl.constexpr(16)  # blocks that one program sorts
BUCKETS = tl.constexpr(1024)  # hash buckets for gate patterns; more buckets, fewer collisions


class Index(NamedTuple):
    """Views of one int32 buffer."""

    spans_G2: Tensor  # the first slot of each block, at the start of a tile, and the end of its slots in use
    tokens_P: Tensor  # the token of each slot; slots are sorted by block, then by token
    opened_T: Tensor  # how many blocks are open for a token
    before_TQ: Tensor  # how many of them are in earlier groups of blocks
    slots_TG: Tensor  # the slots of a token: the first opened_T[t] entries of row t
    tiles_M: Tensor  # [0]: the number of tiles of assignments; then the block of each
    order_S: Tensor  # tokens, those with the same open blocks next to each other; T where a position is empty
    lengths_M: Tensor  # for each tile of `order_S`: how many blocks are open for any of its tokens
    blocks_MG: Tensor  # which blocks these are
    total_blocks: Tensor  # the sum of `lengths_M`
    counts_CW: Tensor  # for each chunk: its tokens in each block and in each bucket of patterns
    totals_W: Tensor  # the same for all chunks together
    buckets_T: Tensor  # the bucket of each token's pattern


def slot_count(T: int, G: int, rows: int) -> int:
    """How many slots there must be: every block starts a new tile."""
    return (T * G // rows + G) * rows


def pattern_tiles(T: int, rows: int) -> int:
    """Tiles of tokens sorted by pattern. A bucket of eight tiles or more starts a new tile, wasting part of one."""
    return -(-T // rows) + T // (8 * rows)


def _part_lengths(T: int, G: int, rows: int) -> dict[str, int]:
    """The length of each part of an index, for tiles of `rows` slots or tokens."""
    chunks, width, tiles = -(-T // CHUNK.value), G + BUCKETS.value, pattern_tiles(T, rows)
    return {
        "spans_G2": 2 * G,
        "tokens_P": slot_count(T, G, rows),
        "opened_T": T,
        "before_TQ": T * _groups(G),
        "slots_TG": T * G,
        "tiles_M": 1 + slot_count(T, G, rows) // rows,
        "order_S": tiles * rows,
        "lengths_M": tiles,
        "blocks_MG": tiles * G,
        "total_blocks": 1,
        "counts_CW": chunks * width,
        "totals_W": width,
        "buckets_T": T,
    }


def buffer_length(T: int, G: int, rows: int) -> int:
    """The length of the buffer for an index."""
    return sum(_aligned(n) for n in _part_lengths(T, G, rows).values())


def view_index(buffer: Tensor, T: int, G: int, rows: int) -> Index:
    """The index that is stored in a buffer."""
    views, first = [], 0
    for n in _part_lengths(T, G, rows).values():
        views.append(buffer[first : first + n])
        first += _aligned(n)
    return Index(*views)


def build_index(factor_TG: Tensor, buffer: Tensor, rows: int, shared_pattern: bool) -> Index:
    """Fill the buffer. shared_pattern: also group the tokens by their gate pattern."""
    T, G = factor_TG.shape
    launch = tune.dependent_launch(factor_TG.device)
    index = view_index(buffer, T, G, rows)
    chunks, tiles, width, groups = -(-T // CHUNK.value), pattern_tiles(T, rows), G + BUCKETS.value, _groups(G)
    _count[(chunks,)](
        factor_TG, index.counts_CW, index.opened_T, index.before_TQ, index.buckets_T, index.order_S, index.total_blocks,
        T, G, width, tiles * rows, SHARED_PATTERN=shared_pattern, **launch,
    )  # fmt: skip
    if shared_pattern:
        _scan[(-(-width // 32),)](index.counts_CW, index.totals_W, chunks, width, num_warps=8, **launch)
    _place[(max(chunks, GROUP.value), groups + shared_pattern)](
        factor_TG, index.spans_G2, index.tokens_P, index.before_TQ, index.slots_TG, index.tiles_M, index.order_S,
        index.counts_CW, index.totals_W, index.buckets_T, T, G, chunks, width, groups, ROWS=rows,
        SHARED_PATTERN=shared_pattern, WIDE=triton.next_power_of_2(G), **launch,
    )  # fmt: skip
    if shared_pattern:
        _list_blocks[(tiles,)](
            factor_TG, index.order_S, index.lengths_M, index.blocks_MG, index.total_blocks, T, G, ROWS=rows, **launch
        )
    return index


def _groups(G: int) -> int:
    return -(-G // GROUP.value)


def _aligned(n: int) -> int:
    return -(-n // 64) * 64  # Triton compiles a kernel again for pointers that are not aligned


@triton.jit
def _mix(g):
    """A number for each block. The sum over the open blocks is a hash of their set."""
    h = (g.to(tl.uint32) + 1) * 0x9E3779B1
    h = (h ^ (h >> 15)) * 0x85EBCA77
    return h ^ (h >> 13)


@triton.jit
def _open(factor, t, g, T, G):
    """Which of these blocks are open for which of these tokens, as 0 and 1."""
    f = tl.load(factor + t.to(tl.int64)[:, None] * G + g[None, :], mask=(t < T)[:, None] & (g < G)[None, :], other=0)
    return (f != 0).to(tl.int32)


@triton.jit
def _count(
    factor, counts, opened_T, before_TQ, buckets, order, total_blocks, T, G, width, positions,
    SHARED_PATTERN: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Count, for each chunk, its tokens in each block and in each bucket of patterns; for each token, its open blocks.
    Also initialize what `_place` does not write everywhere and what `_list_blocks` adds to."""
    if DEPENDENT:
        wait_for_previous_launch()
    chunk = tl.program_id(0)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    key = tl.zeros((CHUNK,), tl.uint32)
    before = tl.zeros((CHUNK,), tl.int32)
    groups = tl.cdiv(G, GROUP)
    for q in range(0, groups):
        g = tl.arange(0, GROUP) + q * GROUP
        opened = _open(factor, t, g, T, G)
        tl.store(counts + chunk * width + g, tl.sum(opened, 0), mask=g < G)
        tl.store(before_TQ + t.to(tl.int64) * groups + q, before, mask=t < T)
        before += tl.sum(opened, 1)
        if SHARED_PATTERN:
            key += tl.sum(opened.to(tl.uint32) * _mix(g)[None, :], 1)
    tl.store(opened_T + t, before, mask=t < T)
    if SHARED_PATTERN:
        bucket = ((key * 0x9E3779B1) >> 16).to(tl.int32) % BUCKETS
        tl.store(buckets + t, bucket, mask=t < T)
        b = tl.arange(0, BUCKETS)
        tl.store(counts + chunk * width + G + b, tl.histogram(bucket, BUCKETS, mask=t < T))
        for first in range(chunk * CHUNK, positions, tl.num_programs(0) * CHUNK):
            place = first + tl.arange(0, CHUNK)
            tl.store(order + place, tl.zeros_like(place) + T, mask=place < positions)
        if chunk == 0:
            tl.store(total_blocks, 0)


@triton.jit
def _scan(counts, totals, chunks, width, DEPENDENT: tl.constexpr, STEP: tl.constexpr = 128):
    """For each block and bucket: turn counts into counts in all earlier chunks."""
    if DEPENDENT:
        wait_for_previous_launch()
    column = tl.program_id(0) * 32 + tl.arange(0, 32)
    before = tl.zeros((32,), tl.int32)
    for first in range(0, chunks, STEP):
        c = first + tl.arange(0, STEP)
        at = counts + c[:, None] * width + column[None, :]
        inside = (c < chunks)[:, None] & (column < width)[None, :]
        n = tl.load(at, mask=inside, other=0)
        tl.store(at, tl.cumsum(n, 0) - n + before[None, :], mask=inside)
        before += tl.sum(n, 0)
    tl.store(totals + column, before, mask=column < width)


@triton.jit
def _sums(counts, chunk, chunks, g, G, width, STEP: tl.constexpr = 64):
    """For each block: its tokens in the chunks before this one and in all chunks, where `_scan` has not run."""
    before = tl.zeros((GROUP,), tl.int32)
    total = tl.zeros((GROUP,), tl.int32)
    for first in range(0, chunks, STEP):
        c = first + tl.arange(0, STEP)
        n = tl.load(counts + c[:, None] * width + g[None, :], mask=(c < chunks)[:, None] & (g < G)[None, :], other=0)
        before += tl.sum(tl.where((c < chunk)[:, None], n, 0), 0)
        total += tl.sum(n, 0)
    return before, total


@triton.jit
def _place(
    factor, spans, tokens, before_TQ, slots_TG, tiles, order, counts, totals, buckets, T, G, chunks, width, groups,
    ROWS: tl.constexpr, SHARED_PATTERN: tl.constexpr, WIDE: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Find the slot of every assignment: a program has a chunk of tokens and a group of blocks. Some programs also list
    the tiles of a block; with SHARED_PATTERN, one more column of programs sorts the tokens by pattern."""
    if DEPENDENT:
        wait_for_previous_launch()
    chunk = tl.program_id(0)
    q = tl.program_id(1)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    if q < groups:
        tile = 0  # the first of this group
        g = q * GROUP + tl.arange(0, GROUP)
        if SHARED_PATTERN:
            ahead = tl.arange(0, WIDE)
            earlier_G = tl.load(totals + ahead, mask=ahead < tl.minimum(q * GROUP, G), other=0)
            tile += tl.sum((earlier_G + ROWS - 1) // ROWS, 0)
            before = tl.load(counts + chunk * width + g, mask=(g < G) & (chunk < chunks), other=0)
            total = tl.load(totals + g, mask=g < G, other=0)
        else:
            for earlier in range(0, q):
                _, total = _sums(counts, 0, chunks, tl.arange(0, GROUP) + earlier * GROUP, G, width)
                tile += tl.sum((total + ROWS - 1) // ROWS, 0)
            before, total = _sums(counts, chunk, chunks, g, G, width)
        n_tiles = (total + ROWS - 1) // ROWS
        first_G = tile + tl.cumsum(n_tiles, 0) - n_tiles
        if chunk < chunks:
            opened = _open(factor, t, g, T, G)
            slot = (first_G * ROWS + before)[None, :] + tl.cumsum(opened, 0) - opened
            nth = tl.load(before_TQ + t.to(tl.int64) * groups + q, mask=t < T, other=0)[:, None]
            nth += tl.cumsum(opened, 1) - opened
            tl.store(tokens + slot, t[:, None] + tl.zeros_like(slot), mask=opened != 0)
            tl.store(slots_TG + t.to(tl.int64)[:, None] * G + nth, slot, mask=opened != 0)
        mine = q * GROUP + chunk  # the block whose tiles this program lists, if it is in the group
        if (chunk < GROUP) & (mine < G):
            first = tl.sum(tl.where(g == mine, first_G, 0), 0)
            last = first + tl.sum(tl.where(g == mine, n_tiles, 0), 0)
            tl.store(spans + 2 * mine, first * ROWS)
            tl.store(spans + 2 * mine + 1, first * ROWS + tl.sum(tl.where(g == mine, total, 0), 0))
            if mine == G - 1:
                tl.store(tiles, last)
            for low in range(first, last, CHUNK):
                i = low + tl.arange(0, CHUNK)
                tl.store(tiles + 1 + i, tl.zeros_like(i) + mine, mask=i < last)
    elif chunk < chunks:
        full = tl.load(totals + G + tl.arange(0, BUCKETS))
        large = full >= 8 * ROWS
        padded = tl.where(large, (full + ROWS - 1) // ROWS * ROWS, 0)
        small = tl.where(large, 0, full)
        start = tl.where(large, tl.cumsum(padded, 0) - padded, tl.sum(padded, 0) + tl.cumsum(small, 0) - small)
        bucket = tl.load(buckets + t, mask=t < T, other=0)
        at = tl.gather(start, bucket, 0) + tl.load(counts + chunk * width + G + bucket)
        earlier = (bucket[:, None] == bucket[None, :]) & (t[:, None] > t[None, :])
        tl.store(order + at + tl.sum(earlier.to(tl.int32), 1), t, mask=t < T)


@triton.jit
def _list_blocks(factor, order, lengths, blocks, total_blocks, T, G, ROWS: tl.constexpr, DEPENDENT: tl.constexpr):
    """List the blocks that are open for any token of a tile."""
    if DEPENDENT:
        wait_for_previous_launch()
    tile = tl.program_id(0)
    row = tile * ROWS + tl.arange(0, ROWS)
    t = tl.load(order + row)
    length = 0
    for first in range(0, G, GROUP):
        g = first + tl.arange(0, GROUP)
        anyone = tl.max(_open(factor, t, g, T, G), 0)
        at = length + tl.cumsum(anyone, 0) - anyone
        tl.store(blocks + tile * G + at, g, mask=anyone != 0)
        length += tl.sum(anyone, 0)
    tl.store(lengths + tile, length)
    tl.atomic_add(total_blocks, length)
