"""Backward kernels over tiles of assignments. With dh = dy @ down for the assignments:

dfactor = sum over the block of dh * h          dz = dh * factor * act'(z) [* v]      dv = dh * factor * act(z)
dx = dz @ up [+ dv @ value]: forward.down       dup = dz' x     dvalue = dv' x     ddown = dy' (factor * h)
"""

from __future__ import annotations

import triton
import triton.language as tl

from dynamicgate.ops.ffn.tiles import activate, assignment_rows, assignment_tile, rows_times, slope


@triton.jit
def activation_gradient(
    dh, f, hidden, pre, val, at, inside, ACTIVATION: tl.constexpr, PRE: tl.constexpr, VALUE: tl.constexpr
):
    """Back through the activation: h before it is multiplied by its factor, dz and dv."""
    if PRE:
        z = tl.load(pre + at, mask=inside, other=0.0).to(tl.float32)
        h = activate(z, ACTIVATION)
        dz = dh * f * slope(z, ACTIVATION)
        dv = dz
        if VALUE:
            v = tl.load(val + at, mask=inside, other=0.0).to(tl.float32)
            dv = dh * f * h
            dz *= v
            h *= v
    else:  # the slope of relu and identity can be read off their result
        h = tl.load(hidden + at, mask=inside, other=0.0).to(tl.float32) / f
        dz = dh * f * slope(h, ACTIVATION)
        dv = dz
    return h, dz, dv


@triton.jit
def hidden_gradient(
    dy, w, factor, hidden, pre, val, dz, dv, dfactor, spans, tokens, tiles, O, N, G,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, ACTIVATION: tl.constexpr,
    PRE: tl.constexpr, VALUE: tl.constexpr, EVEN: tl.constexpr, TMA: tl.constexpr, PRECISION: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    """dz and dv of the assignments, and dfactor[t, g, columns], which is to be summed over the columns of a block."""
    columns: tl.constexpr = (BLOCK + COLUMNS - 1) // COLUMNS
    for item in range(tl.program_id(0), tl.load(tiles) * columns, tl.num_programs(0)):
        g, slot, t, exists = assignment_tile(tiles, tokens, spans, item // columns, ROWS)
        unit = item % columns * COLUMNS
        n = g * BLOCK + unit
        n_end = tl.minimum(g * BLOCK + BLOCK, N)
        ns = n + tl.arange(0, COLUMNS)
        dh = tl.zeros((ROWS, COLUMNS), tl.float32)
        dh, _ = rows_times(
            dh, dh, dy, O, t, w, w, N, ns, n, ns, n, O, n_end, dy, dy, 0, 0, 0, DEPTH, False, EVEN, TMA, False,
            PRECISION, STAGES, 0, False,
        )  # fmt: skip
        f = tl.load(factor + t * G + g, mask=exists, other=1.0)[:, None]
        part = tl.zeros((ROWS,), tl.float32)
        for half in tl.static_range(2):  # a whole tile of h, dh and dz does not fit into the registers
            u = half * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
            at = slot[:, None] * BLOCK + (unit + u)[None, :]
            inside = exists[:, None] & (n + u < n_end)[None, :]
            dh_half = tl.split(tl.permute(tl.reshape(dh, (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))[half]
            h, dz_half, dv_half = activation_gradient(dh_half, f, hidden, pre, val, at, inside, ACTIVATION, PRE, VALUE)
            part += tl.sum(tl.where(inside, dh_half * h, 0.0), 1)
            tl.store(dz + at, dz_half.to(dz.dtype.element_ty), mask=inside)
            if VALUE:
                tl.store(dv + at, dv_half.to(dv.dtype.element_ty), mask=inside)
        tl.store(dfactor + (t * G + g) * columns + item % columns, part, mask=exists)


@triton.jit
def token_rows(b, stride, tokens, slot, end, cs, inside, FULL: tl.constexpr, EVEN: tl.constexpr, WIDE: tl.constexpr):
    """b[token of slot, cs]; 0 for slots past the end unless FULL. WIDE: b has 2**31 elements or more."""
    if FULL:
        t = tl.load(tokens + slot)
    else:
        t = tl.load(tokens + slot, mask=slot < end, other=0)
    if WIDE:
        t = t.to(tl.int64)
    at = b + (t * stride)[:, None] + cs[None, :]
    if FULL and EVEN:
        rows = tl.load(at)
    elif FULL:
        rows = tl.load(at, mask=inside[None, :], other=0.0)
    else:
        rows = tl.load(at, mask=(slot < end)[:, None] & inside[None, :], other=0.0)
    return rows


@triton.jit
def weight_gradient(
    a, b, out, spans, tokens, N, C, G, a_tma,
    BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, TRANSPOSED: tl.constexpr,
    EVEN: tl.constexpr, TMA: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out[n, c] = sum over the assignments of the block of n, of a[slot, n] * b[t, c]. TRANSPOSED: out is stored
    [c, n], and ROWS counts c."""
    UNITS: tl.constexpr = COLUMNS if TRANSPOSED else ROWS
    WIDTH: tl.constexpr = ROWS if TRANSPOSED else COLUMNS
    units: tl.constexpr = (BLOCK + UNITS - 1) // UNITS
    columns = tl.cdiv(C, WIDTH)
    for item in range(tl.program_id(0), G * units * columns, tl.num_programs(0)):
        g = item // (units * columns)
        unit = item // columns % units * UNITS
        us = unit + tl.arange(0, UNITS)
        ns = g * BLOCK + us
        cs = item % columns * WIDTH + tl.arange(0, WIDTH)
        u_inside = us < tl.minimum(BLOCK, N - g * BLOCK)
        c_inside = cs < C
        start = tl.load(spans + 2 * g)
        end = tl.load(spans + 2 * g + 1)
        full = start + (end - start) // DEPTH * DEPTH
        acc = tl.zeros((ROWS, COLUMNS), tl.float32)
        for first in tl.range(start, full, DEPTH, num_stages=STAGES):
            slot = first + tl.arange(0, DEPTH)
            a_tile = assignment_rows(a_tma, slot.to(tl.int64), first, unit, N - g * BLOCK, us - unit, BLOCK, EVEN, TMA)
            b_tile = token_rows(b, C, tokens, slot, end, cs, c_inside, True, EVEN, WIDE)
            if TRANSPOSED:
                acc = tl.dot(b_tile.T, a_tile, acc, input_precision=PRECISION)
            else:
                acc = tl.dot(a_tile.T, b_tile, acc, input_precision=PRECISION)
        if full < end:
            slot = full + tl.arange(0, DEPTH)
            at = a + slot.to(tl.int64)[:, None] * BLOCK + us[None, :]
            a_tile = tl.load(at, mask=(slot < end)[:, None] & u_inside[None, :], other=0.0)
            b_tile = token_rows(b, C, tokens, slot, end, cs, c_inside, False, EVEN, WIDE)
            if TRANSPOSED:
                acc = tl.dot(b_tile.T, a_tile, acc, input_precision=PRECISION)
            else:
                acc = tl.dot(a_tile.T, b_tile, acc, input_precision=PRECISION)
        if TRANSPOSED:
            at = out + cs.to(tl.int64)[:, None] * N + ns[None, :]
            inside = c_inside[:, None] & u_inside[None, :]
        else:
            at = out + ns.to(tl.int64)[:, None] * C + cs[None, :]
            inside = u_inside[:, None] & c_inside[None, :]
        tl.store(at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def bias_gradient(a, out, spans, N, BLOCK: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """out[n] = sum over the assignments of the block of n, of a[slot, n]."""
    g = tl.program_id(0)
    us = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = us < tl.minimum(BLOCK, N - g * BLOCK)
    end = tl.load(spans + 2 * g + 1)
    acc = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(tl.load(spans + 2 * g), end, ROWS):
        slot = first + tl.arange(0, ROWS)
        at = a + slot.to(tl.int64)[:, None] * BLOCK + us[None, :]
        acc += tl.load(at, mask=(slot < end)[:, None] & inside[None, :], other=0.0).to(tl.float32)
    tl.store(out + g * BLOCK + us, tl.sum(acc, 0).to(out.dtype.element_ty), mask=inside)
