"""From factors to lists of open (token, block) pairs, on the device: the host never learns how many there are.

A counting sort in two launches, and two more that look for tokens whose open blocks are alike. Nothing here depends on
the order in which programs run, so the lists are the same every time.

Shapes in names: T tokens, G blocks, P open pairs (at most T * G), C chunks of tokens, M tiles of tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.tiles import follow

CHUNK = tl.constexpr(128)  # tokens that one program counts and places
GROUP = tl.constexpr(16)  # blocks likewise
BUCKETS = tl.constexpr(1024)  # for tokens with the same open blocks; more of them, fewer chance meetings


class Index(NamedTuple):
    """Views of one int32 buffer."""

    spans_G2: Tensor  # where each block's pairs start, with a tile of their own, and end
    tokens_P: Tensor  # the token of each pair; pairs are sorted by block, then token
    opened_T: Tensor  # how many blocks a token has open
    before_TQ: Tensor  # how many of them are in earlier groups of blocks
    pairs_TG: Tensor  # which pairs these are: the first opened_T[t] entries of row t
    tiles_M: Tensor  # [0]: how many tiles of pairs there are; then the block of each
    order_S: Tensor  # tokens, those with the same open blocks side by side; T where a place is left empty
    lengths_M: Tensor  # for each tile of `order_S`: how many blocks are open for any of its tokens
    blocks_MG: Tensor  # which these are
    like: Tensor  # the sum of `lengths_M`
    counts_CW: Tensor  # for each chunk: tokens of each block, and in each bucket of like tokens
    totals_W: Tensor  # and in all chunks together
    buckets_T: Tensor


def pairs(T: int, G: int, rows: int) -> int:
    """Places for pairs: every block starts a tile of its own."""
    return (T * G // rows + G) * rows


def like_tiles(T: int, rows: int) -> int:
    """Tiles of like tokens: a bucket of eight tiles or more starts a tile of its own, at the price of part of one."""
    return -(-T // rows) + T // (8 * rows)


def sizes(T: int, G: int, rows: int) -> dict[str, int]:
    """Length of each part of an index for tiles of `rows` pairs or tokens."""
    chunks, width, tiles = -(-T // CHUNK.value), G + BUCKETS.value, like_tiles(T, rows)
    return {
        "spans_G2": 2 * G,
        "tokens_P": pairs(T, G, rows),
        "opened_T": T,
        "before_TQ": T * _groups(G),
        "pairs_TG": T * G,
        "tiles_M": 1 + pairs(T, G, rows) // rows,
        "order_S": tiles * rows,
        "lengths_M": tiles,
        "blocks_MG": tiles * G,
        "like": 1,
        "counts_CW": chunks * width,
        "totals_W": width,
        "buckets_T": T,
    }


def size(T: int, G: int, rows: int) -> int:
    """Length of the buffer."""
    return sum(_aligned(n) for n in sizes(T, G, rows).values())


def parts(buffer: Tensor, T: int, G: int, rows: int) -> Index:
    """The index that lives in a buffer."""
    views, first = [], 0
    for n in sizes(T, G, rows).values():
        views.append(buffer[first : first + n])
        first += _aligned(n)
    return Index(*views)


def build(factor_TG: Tensor, buffer: Tensor, rows: int, share: bool) -> Index:
    """Fill the buffer. share: also look for tokens with like blocks."""
    T, G = factor_TG.shape
    after = tune.chained(factor_TG.device)
    index = parts(buffer, T, G, rows)
    chunks, tiles, width, groups = -(-T // CHUNK.value), like_tiles(T, rows), G + BUCKETS.value, _groups(G)
    _count[(chunks,)](
        factor_TG, index.counts_CW, index.opened_T, index.before_TQ, index.buckets_T, index.order_S, index.like, T, G,
        width, tiles * rows, SHARE=share, **after,
    )  # fmt: skip
    if share:
        _scan[(-(-width // 32),)](index.counts_CW, index.totals_W, chunks, width, num_warps=8, **after)
    _place[(max(chunks, GROUP.value), groups + share)](
        factor_TG, index.spans_G2, index.tokens_P, index.before_TQ, index.pairs_TG, index.tiles_M, index.order_S,
        index.counts_CW, index.totals_W, index.buckets_T, T, G, chunks, width, groups, ROWS=rows, SHARE=share,
        WIDE=triton.next_power_of_2(G), **after,
    )  # fmt: skip
    if share:
        _share[(tiles,)](
            factor_TG, index.order_S, index.lengths_M, index.blocks_MG, index.like, T, G, ROWS=rows, **after
        )
    return index


def _groups(G: int) -> int:
    return -(-G // GROUP.value)


def _aligned(n: int) -> int:
    return -(-n // 64) * 64  # Triton compiles anew for pointers that are not aligned


@triton.jit
def _mix(g):
    """A number for each block, whose sum over the open ones tells sets of blocks apart."""
    h = (g.to(tl.uint32) + 1) * 0x9E3779B1
    h = (h ^ (h >> 15)) * 0x85EBCA77
    return h ^ (h >> 13)


@triton.jit
def _open(factor, t, g, T, G):
    """Which of these tokens and blocks are open, as 0 and 1."""
    f = tl.load(factor + t.to(tl.int64)[:, None] * G + g[None, :], mask=(t < T)[:, None] & (g < G)[None, :], other=0)
    return (f != 0).to(tl.int32)


@triton.jit
def _count(
    factor, counts, opened_T, before_TQ, buckets, order, like, T, G, width, places,
    SHARE: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """For each chunk: tokens of each block, and tokens in each bucket of like ones; for each token: its open blocks.
    What `_place` and `_share` leave out or add to is made ready."""
    if AFTER:
        follow()
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
        if SHARE:
            key += tl.sum(opened.to(tl.uint32) * _mix(g)[None, :], 1)
    tl.store(opened_T + t, before, mask=t < T)
    if SHARE:
        bucket = ((key * 0x9E3779B1) >> 16).to(tl.int32) % BUCKETS
        tl.store(buckets + t, bucket, mask=t < T)
        b = tl.arange(0, BUCKETS)
        tl.store(counts + chunk * width + G + b, tl.histogram(bucket, BUCKETS, mask=t < T))
        for first in range(chunk * CHUNK, places, tl.num_programs(0) * CHUNK):
            place = first + tl.arange(0, CHUNK)
            tl.store(order + place, tl.zeros_like(place) + T, mask=place < places)
        if chunk == 0:
            tl.store(like, 0)


@triton.jit
def _scan(counts, totals, chunks, width, AFTER: tl.constexpr, STEP: tl.constexpr = 128):
    """For each block and bucket: counts become counts in the chunks before."""
    if AFTER:
        follow()
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
    """For each block: its tokens in the chunks before this one, and in all, where nobody has scanned them."""
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
    factor, spans, tokens, before_TQ, pairs_TG, tiles, order, counts, totals, buckets, T, G, chunks, width, groups,
    ROWS: tl.constexpr, SHARE: tl.constexpr, WIDE: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Every pair finds its place: a program has a chunk of tokens and a group of blocks. Some programs also cut a block
    into tiles of pairs; with SHARE, one more column of programs gives tokens their places beside like ones."""
    if AFTER:
        follow()
    chunk = tl.program_id(0)
    q = tl.program_id(1)
    t = chunk * CHUNK + tl.arange(0, CHUNK)
    if q < groups:
        tile = 0  # the first of this group
        g = q * GROUP + tl.arange(0, GROUP)
        if SHARE:
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
            pair = (first_G * ROWS + before)[None, :] + tl.cumsum(opened, 0) - opened
            nth = tl.load(before_TQ + t.to(tl.int64) * groups + q, mask=t < T, other=0)[:, None]
            nth += tl.cumsum(opened, 1) - opened
            tl.store(tokens + pair, t[:, None] + tl.zeros_like(pair), mask=opened != 0)
            tl.store(pairs_TG + t.to(tl.int64)[:, None] * G + nth, pair, mask=opened != 0)
        mine = q * GROUP + chunk  # the block whose tiles this program lists, if it is one of the group
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
def _share(factor, order, lengths, blocks, like, T, G, ROWS: tl.constexpr, AFTER: tl.constexpr):
    """The blocks that are open for any token of a tile."""
    if AFTER:
        follow()
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
    tl.atomic_add(like, length)
