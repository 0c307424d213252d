"""Kernels for gate_gradient="dense", where closed blocks get a gradient too: between dense products and assignments."""

from __future__ import annotations

import triton
import triton.language as tl

from dynamicgate.ops.ffn.backward_kernels import activation_gradient
from dynamicgate.ops.ffn.tiles import activate, assignment_tile


@triton.jit
def hidden_from_dense(
    factor, pre, val, hidden, spans, tokens, tiles, N, G,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACTIVATION: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """hidden[slot] = factor * act(pre[t]) [* val[t]] for the units of the slot's block."""
    columns: tl.constexpr = (BLOCK + COLUMNS - 1) // COLUMNS
    for item in range(tl.program_id(0), tl.load(tiles) * columns, tl.num_programs(0)):
        g, slot, t, exists = assignment_tile(tiles, tokens, spans, item // columns, ROWS)
        us = item % columns * COLUMNS + tl.arange(0, COLUMNS)
        inside = exists[:, None] & (us < tl.minimum(BLOCK, N - g * BLOCK))[None, :]
        at = t[:, None] * N + g * BLOCK + us[None, :]
        h = activate(tl.load(pre + at, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
        if VALUE:
            h *= tl.load(val + at, mask=inside, other=0.0).to(tl.float32)
        h *= tl.load(factor + t * G + g)[:, None]
        tl.store(hidden + slot[:, None] * BLOCK + us[None, :], h.to(hidden.dtype.element_ty), mask=inside)


@triton.jit
def gradients_from_dense(
    dh, factor, pre, val, dz, dv, dfactor, before, slots, T, N, G,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, ACTIVATION: tl.constexpr,
    VALUE: tl.constexpr,
):  # fmt: skip
    """From a dense dh: dfactor[t, g] = sum over the block of dh * h, open or closed; dz and dv of the assignments."""
    t = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    g = tl.program_id(1)
    f = tl.load(factor + t * G + g, mask=t < T, other=0.0)
    ahead = g // GROUP * GROUP + tl.arange(0, GROUP)
    is_open = tl.load(factor + t[:, None] * G + ahead[None, :], mask=(t < T)[:, None] & (ahead < g)[None, :], other=0)
    nth = tl.load(before + t * tl.cdiv(G, GROUP) + g // GROUP, mask=t < T, other=0)
    nth += tl.sum((is_open != 0).to(tl.int32), 1)
    slot = tl.load(slots + t * G + nth, mask=f != 0, other=0).to(tl.int64)
    total = tl.zeros((ROWS,), tl.float32)
    for first in range(0, BLOCK, COLUMNS):
        us = first + tl.arange(0, COLUMNS)
        at = t[:, None] * N + g * BLOCK + us[None, :]
        inside = (t < T)[:, None] & (us < tl.minimum(BLOCK, N - g * BLOCK))[None, :]
        dh_tile = tl.load(dh + at, mask=inside, other=0.0).to(tl.float32)
        h, dz_tile, dv_tile = activation_gradient(
            dh_tile, f[:, None], pre, pre, val, at, inside, ACTIVATION, True, VALUE
        )
        total += tl.sum(dh_tile * h, 1)
        there = slot[:, None] * BLOCK + us[None, :]
        stored = inside & (f != 0)[:, None]
        tl.store(dz + there, dz_tile.to(dz.dtype.element_ty), mask=stored)
        if VALUE:
            tl.store(dv + there, dv_tile.to(dv.dtype.element_ty), mask=stored)
    tl.store(dfactor + t * G + g, total, mask=t < T)
