"""Many tokens: which kernels run, and on what. The host launches the same kernels whatever is open."""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.ops.ffn import atomic_down, dense_gate_gradient, shared_pattern, tune
from dynamicgate.ops.ffn import backward as back
from dynamicgate.ops.ffn import forward as pair_kernels
from dynamicgate.ops.ffn import index as indexing
from dynamicgate.ops.ffn.grouped_launch import Job, described, either, fetchable, job, power_of_2
from dynamicgate.ops.ffn.index import Index
from dynamicgate.ops.ffn.saved import Kept

STARTED = 2048  # entries of the outputs that a step of `up` makes ready: one wide store of each thread
ADDED_AT_ONCE = 512  # columns of the outputs: of 16,384 tokens they take 16 MB of the L2 cache


def kept_sizes(T: int, G: int, device: torch.device) -> tuple[int, int]:
    """Rows of what is kept for each pair, and the length of the index."""
    rows = tune.rows(device)
    return indexing.pairs(T, G, rows), indexing.size(T, G, rows)


def forward(
    x: Tensor,
    up: Tensor,
    down: Tensor,
    factor: Tensor,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    value: Tensor | None,
    value_bias: Tensor | None,
    block: int,
    activation: str,
    keep: str,
    in_order: bool,
    kept: Kept,
) -> Tensor:
    """y, and what `keep` asks for into `kept`."""
    T, D = x.shape
    N, O, G = up.shape[0], down.shape[0], factor.shape[1]
    y = x.new_empty(T, O)
    if not T:
        return y
    factor = factor.view(torch.uint8) if factor.dtype is torch.bool else factor
    work = job(x, factor, block, N, share=not keep, in_order=in_order)
    buffer = kept.pairs if keep else x.new_empty(indexing.size(T, G, work.rows), dtype=torch.int32)
    index = indexing.build(factor, buffer, work.rows, work.share)
    like_rows = indexing.like_tiles(T, work.rows) * work.rows if work.share else 0
    memory = kept.hidden if keep else x.new_empty(max(work.pairs * block, like_rows * N))
    hidden = memory.view(-1)[: work.pairs * block].view(work.pairs, block)
    options, after = {"ACTIVATION": activation, "VALUE": value is not None}, tune.chained(x.device)
    if keep == "exact":
        tile = work.tile("elementwise")
        dense_gate_gradient.exact_hidden[work.grid(tile)](
            factor, kept.pre, kept.val, hidden, index.spans_G2, index.tokens_P, index.tiles_M, N, G, **options,
            BLOCK=block, ROWS=work.rows, COLUMNS=tile.columns,
        )  # fmt: skip
    else:
        options |= {"BIAS": up_bias is not None, "VALUE_BIAS": value_bias is not None}
        tile = work.tile("up" if value is None else "up_value")
        tma = fetchable(tile, up, value)
        sides = [
            described(either(w, up), columns, tile.depth, tma and w is not None)  # each takes the host some time
            for w in (up, value)
            for columns in (tile.columns, tile.columns // 2)
        ]
        even = work.even and D % tile.depth == 0 and block % tile.columns == 0
        pair_kernels.up[work.grid(tile)](
            x, *sides, either(up_bias, x), either(value_bias, x), factor, hidden, kept.pre, kept.val, index.spans_G2,
            index.tokens_P, index.tiles_M, index.like, y, either(down_bias, x), T, D, N, G, O, **options,
            KEEP=bool(kept.pre.numel()), SHARE=work.share, TMA=tma, PARTIAL=tune.PARTIAL,
            START=STARTED if work.adds else 0, Y_BIAS=down_bias is not None, **work.sizes(tile, even), **after,
        )  # fmt: skip
        if work.share:
            rows = memory[: like_rows * N].view(like_rows, N)
            data = (x, up, down, factor, up_bias, down_bias, value, value_bias)
            _like_tokens(work, index, data, options, rows, y)
    if work.adds:
        if keep == "exact":  # else `up` did it
            y.zero_() if down_bias is None else y.copy_(down_bias)
        _add_pairs(work, index, [(hidden, down)], True, y)
    else:
        _sum_of_pairs(work, index, [(hidden, down)], True, down_bias, y)
    return y


def _like_tokens(
    work: Job,
    index: Index,
    data: tuple[Tensor | None, ...],
    options: dict[str, object],
    hidden: Tensor,
    y: Tensor,
) -> None:
    """The other way to y, for tiles of like tokens; its kernels return at once where the first way is cheaper."""
    x, up, down, factor, up_bias, down_bias, value, value_bias = data
    assert x is not None
    assert up is not None
    assert down is not None
    (T, D), (N, G), O = x.shape, (work.units, work.blocks), y.shape[1]
    tiles, after = indexing.like_tiles(T, work.rows), tune.chained(x.device)
    lists = (index.tiles_M, index.like, index.order_S, index.lengths_M, index.blocks_MG)
    tile = work.tile("like_up" if value is None else "like_up_value")
    tma = fetchable(tile, up, value)
    sides = (described(w, tile.columns, tile.depth, tma) for w in (up, either(value, up)))
    shared_pattern.like_up[work.grid(tile)](
        x, *sides, either(up_bias, x), either(value_bias, x), factor, hidden, *lists, T, D, N, G, tiles, **options,
        TMA=tma, PARTIAL=tune.PARTIAL, WIDE=max(256, power_of_2(tiles)), **work.sizes(tile, D % tile.depth == 0),
        **after,
    )  # fmt: skip
    tile = work.tile("like_down")
    tma = fetchable(tile, hidden, down)
    shared_pattern.like_down[work.grid(tile)](
        described(hidden, tile.rows, tile.depth, tma), described(down, tile.columns, tile.depth, tma),
        either(down_bias, x), y, *lists, T, N, G, O, tiles, BIAS=down_bias is not None, TMA=tma, PARTIAL=tune.PARTIAL,
        **work.sizes(tile, O % tile.columns == 0), **after,
    )  # fmt: skip


def backward(
    dy: Tensor,
    x: Tensor,
    up: Tensor,
    down: Tensor,
    factor: Tensor,
    value: Tensor | None,
    block: int,
    activation: str,
    gradient: str,
    in_order: bool,
    wanted: list[bool],
    kept: Kept,
) -> list[Tensor | None]:
    """Gradients of x, up, down, factor, the bias of up and of down, value and its bias: None where not wanted."""
    T, N, O, G = x.shape[0], up.shape[0], down.shape[0], factor.shape[1]
    found: list[Tensor | None] = [None] * 8
    if not T:
        like_these = (x, up, down, factor, up[:, 0], down[:, 0], up, up[:, 0])
        return [torch.zeros_like(t) if want else None for t, want in zip(like_these, wanted, strict=True)]
    work = job(x, factor, block, N, share=False, in_order=in_order)
    index = indexing.parts(kept.pairs, T, G, work.rows)
    if wanted[2]:
        found[2] = _weight_gradient(work, index, kept.hidden, dy, torch.empty_like(down), turned=True)
    if wanted[5]:
        found[5] = dy.sum(0)
    if not any((*wanted[:2], *wanted[3:5], *wanted[6:])):
        return found
    dz = torch.empty_like(kept.hidden)
    dv = torch.empty_like(kept.hidden) if value is not None else kept.val
    options = {"ACTIVATION": activation, "VALUE": value is not None}
    where = (index.spans_G2, index.tokens_P, index.tiles_M)
    if gradient == "exact":
        dh, dfactor = dy @ down, torch.empty_like(factor)
        tile = work.tile("rowwise")
        dense_gate_gradient.exact_gradients[(-(-T // tile.depth), G)](
            dh, factor, kept.pre, kept.val, dz, dv, dfactor, index.before_TQ, index.pairs_TG, T, N, G, **options,
            BLOCK=block, ROWS=tile.depth, COLUMNS=min(tile.columns, power_of_2(block)), GROUP=indexing.GROUP.value,
        )  # fmt: skip
        del dh
    else:
        tile = work.tile("hidden_gradient")
        tma = fetchable(tile, down)
        parts = factor.new_empty(T, G, -(-block // tile.columns))
        even = work.even and O % tile.depth == 0 and block % tile.columns == 0
        back.hidden_gradient[work.grid(tile)](
            dy, described(down, tile.depth, tile.columns, tma), factor, kept.hidden, kept.pre, kept.val, dz, dv, parts,
            *where, O, N, G, **options, PRE=bool(kept.pre.numel()), TMA=tma, **work.sizes(tile, even),
        )  # fmt: skip
        dfactor = torch.where(factor != 0, parts.sum(-1), 0.0)
    if wanted[0]:
        dx = found[0] = torch.empty_like(x)
        both = [(dz, up)] if value is None else [(dz, up), (dv, value)]
        if work.adds:
            _add_pairs(work, index, both, False, dx.zero_())
        else:
            _sum_of_pairs(work, index, both, False, None, dx)
    if wanted[1]:
        found[1] = _weight_gradient(work, index, dz, x, torch.empty_like(up), turned=False)
    if wanted[3]:
        found[3] = dfactor
    if wanted[4]:
        found[4] = _bias_gradient(work, index, dz)
    if wanted[6]:
        found[6] = _weight_gradient(work, index, dv, x, torch.empty_like(up), turned=False)
    if wanted[7]:
        found[7] = _bias_gradient(work, index, dv)
    return found


def _sum_of_pairs(
    work: Job,
    index: Index,
    factors: list[tuple[Tensor, Tensor]],
    by_column: bool,
    bias: Tensor | None,
    y: Tensor,
) -> None:
    """y[t] = bias + sum over t's pairs of a[pair] @ w[its block], for one (a, w) or two; by_column: w is stored [O, N].

    One row for each pair goes through memory, in rounds of columns: there may be T * G of them."""
    (a, w), (a2, w2), (T, O) = factors[0], factors[-1], y.shape
    two = len(factors) == 2
    kernel = "down_two" if two else "down" if by_column else "down_turned"
    tile, summing = work.tile(kernel), work.tile("reduce")
    columns = tune.most_bytes(y.device) // (work.pairs * y.itemsize) // tile.columns * tile.columns
    columns = min(O, max(columns, tile.columns))
    memory, after = y.new_empty(work.pairs * columns), tune.chained(y.device)
    for first in range(0, O, columns):
        width = min(columns, O - first)
        partial = memory[: work.pairs * width].view(work.pairs, width)
        deep = work.even and work.block % tile.depth == 0
        tma = deep and fetchable(tile, a, w, w2, partial)
        box = (tile.columns, tile.depth) if by_column else (tile.depth, tile.columns)
        stored = tile.columns // 2 if tile.halves else tile.columns
        run = max(1, tile.run * tile.depth // work.block) if tile.run else 0
        pair_kernels.down[work.grid(tile)](
            described(a, work.rows, tile.depth, tma), described(w, *box, tma),
            described(a2, work.rows, tile.depth, tma and two), described(w2, *box, tma and two),
            described(partial, work.rows, stored, tma), index.tiles_M, index.like, work.units, w.shape[1], first, width,
            O, SHARE=work.share, TWO=two, BY_COLUMN=by_column, TMA=tma, PARTIAL=tune.PARTIAL, RUN=run,
            HALVES=tile.halves, **work.sizes(tile, deep and width % tile.columns == 0), **after,
        )  # fmt: skip
        pair_kernels.reduce[work.grid(summing)](
            partial, either(bias, y), y, index.opened_T, index.pairs_TG, index.tiles_M, index.like, T, work.blocks,
            first, width, O, SHARE=work.share, PARTIAL=tune.PARTIAL, BLOCK=work.block, COLUMNS=summing.columns,
            AT_ONCE=summing.depth, BIAS=bias is not None, num_warps=summing.warps, **after,
        )  # fmt: skip


def _add_pairs(work: Job, index: Index, factors: list[tuple[Tensor, Tensor]], by_column: bool, y: Tensor) -> None:
    """y[t] += the sum over t's pairs of a[pair] @ w[its block], as in `_sum_of_pairs`, in any order."""
    (a, w), (a2, w2), O = factors[0], factors[-1], y.shape[1]
    two, tile = len(factors) == 2, work.tile("adding")
    deep = work.even and work.block % tile.depth == 0
    tma = deep and fetchable(tile, a, w, w2)
    box = (tile.columns, tile.depth) if by_column else (tile.depth, tile.columns)
    atomic_down.down_adding[work.grid(tile)](
        described(a, work.rows, tile.depth, tma), described(w, *box, tma),
        described(a2, work.rows, tile.depth, tma and two), described(w2, *box, tma and two),
        y, index.spans_G2, index.tokens_P, index.tiles_M, index.like, work.units, w.shape[1], O, SHARE=work.share,
        TWO=two, BY_COLUMN=by_column, TMA=tma, PARTIAL=tune.PARTIAL, AT_ONCE=max(1, ADDED_AT_ONCE // tile.columns),
        **work.sizes(tile, deep and O % tile.columns == 0), **tune.chained(y.device),
    )  # fmt: skip


def _weight_gradient(work: Job, index: Index, a: Tensor, b: Tensor, out: Tensor, turned: bool) -> Tensor:
    """out[n, c] = sum of a[pair, n] b[t, c] over the pairs of the block of n; turned: out[c, n]."""
    tile, C = work.tile("down_gradient" if turned else "up_gradient"), b.shape[1]
    units, width = (tile.columns, tile.rows) if turned else (tile.rows, tile.columns)
    even = work.even and work.block % units == 0 and C % width == 0
    tma = work.even and fetchable(tile, a)
    back.weight_gradient[work.grid(tile)](
        a, b, out, index.spans_G2, index.tokens_P, work.units, C, work.blocks, described(a, tile.depth, units, tma),
        TURNED=turned, TMA=tma, WIDE=b.numel() >= 2**31, **work.sizes(tile, even),
    )  # fmt: skip
    return out


def _bias_gradient(work: Job, index: Index, a: Tensor) -> Tensor:
    """The sum over the pairs of each block."""
    out, columns = a.new_empty(work.units), min(64, power_of_2(work.block))
    back.bias_gradient[(work.blocks, -(-work.block // columns))](
        a, out, index.spans_G2, work.units, BLOCK=work.block, ROWS=min(64, work.rows), COLUMNS=columns
    )
    return out
