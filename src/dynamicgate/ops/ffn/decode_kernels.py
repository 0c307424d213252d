"""The Triton kernel of a gated layer for 1 to 16 tokens, behind its gate. few.md says why it is cut this way.

One token is multiplied on the ordinary lanes; several go through `tl.dot`, padded to 16. Arrays are [row of the weight,
token], so that weights are the left operand. Every sum has one fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from dynamicgate.ops.ffn.tiles import activate


@triton.jit
def arrivals(arrived):
    """How many programs have reached the barrier; what they wrote before is visible to whoever sees them."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [arrived.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def linear(
    x, weight, bias, row, here, tokens, inputs,
    BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """weight_RD x_TD' + bias_R, in float32. Weights pass through once: they must not push anything else out of L2."""
    token = tl.arange(0, TOKENS)
    there = token < tokens
    offset = row.to(tl.int64) * inputs
    z = tl.zeros([ROWS, TOKENS], tl.float32)
    for start in tl.range(0, inputs, DEPTH, num_stages=STAGES):
        k = start + tl.arange(0, DEPTH)
        inside = k < inputs
        mask = here[:, None] & inside[None, :]
        w = tl.load(weight + offset[:, None] + k[None, :], mask, 0.0, eviction_policy="evict_first")
        if TOKENS == 1:
            a = tl.load(x + k, inside, 0.0)
            z += tl.sum(w.to(tl.float32) * a.to(tl.float32)[None, :], 1)[:, None]
        else:
            a = tl.load(x + token[None, :] * inputs + k[:, None], there[None, :] & inside[:, None], 0.0)
            z = tl.dot(w, a, z, input_precision="ieee")
    if BIAS:
        z += tl.load(bias + row, here, 0.0).to(tl.float32)[:, None]
    return z


@triton.jit
def up_share(
    x, up, up_bias, value, value_bias, factor, order, h, start, end, tokens, inputs, units, blocks, width,
    UP_BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr, LISTED: tl.constexpr, TOKENS: tl.constexpr,
    UNITS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h_TN for the places from `start` to `end`, UNITS at a time."""
    token = tl.arange(0, TOKENS)
    there = token < tokens
    for first in range(start, end, UNITS):
        place = first + tl.arange(0, UNITS)
        here = place < end
        if LISTED:
            block = tl.load(order + place // BLOCK, here, 0)
            unit = block * BLOCK + place % BLOCK
            here = here & (unit < units)
        else:
            block = place // BLOCK
            unit = place
        scale = tl.load(factor + token[None, :] * blocks + block[:, None], here[:, None] & there[None, :], 0.0)
        if LISTED:
            live = here
        else:
            live = tl.max((scale != 0).to(tl.int32), 1) > 0
        u = linear(x, up, up_bias, unit, live, tokens, inputs, UP_BIAS, UNITS, TOKENS, DEPTH, STAGES)
        u = activate(u, ACTIVATION)
        if VALUE:
            u *= linear(x, value, value_bias, unit, live, tokens, inputs, VALUE_BIAS, UNITS, TOKENS, DEPTH, STAGES)
        u = tl.where(scale != 0, u * scale, 0.0)  # a token that does not open what another one opens
        tl.store(h + token[None, :] * width + place[:, None], u, here[:, None] & there[None, :])


@triton.jit
def open_columns(
    order, opened, start, total, units,
    BLOCK: tl.constexpr, LISTED: tl.constexpr, PIECE: tl.constexpr, ALIGNED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The hidden units of COLUMNS // PIECE pieces from `start` on, their places in h, and whether they are open."""
    if LISTED:
        PIECES: tl.constexpr = (BLOCK + PIECE - 1) // PIECE
        piece = start + tl.arange(0, COLUMNS // PIECE)
        exists = piece < total
        rank = piece // PIECES
        block = tl.load(order + rank, exists, 0)
        inner = ((piece % PIECES) * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
        unit = block[:, None] * BLOCK + inner
        place = rank[:, None] * BLOCK + inner
        live = exists[:, None] & (inner < BLOCK) & (unit < units)
        # A reshape hides from the compiler that pieces are contiguous, and with it the wide loads.
        unit = tl.max_contiguous(tl.multiple_of(tl.reshape(unit, [COLUMNS]), ALIGNED), ALIGNED)
        place = tl.max_contiguous(tl.multiple_of(tl.reshape(place, [COLUMNS]), ALIGNED), ALIGNED)
        live = tl.max_constancy(tl.reshape(live, [COLUMNS]), ALIGNED)
    else:
        unit = start + tl.arange(0, COLUMNS)
        place = unit
        live = unit < units
        live = live & (tl.load(opened + unit // BLOCK, live, 0) > 0)
    return unit, place, live


@triton.jit(do_not_specialize=["tokens"])
def ffn_kernel(
    x, up, up_bias, value, value_bias, down, down_bias, factor, opened, order, arrived, h, y,
    tokens, inputs, units, blocks, outputs, width,
    UP_BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, DOWN_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr, FLAGS: tl.constexpr, PIECE: tl.constexpr,
    ALIGNED: tl.constexpr, TOKENS: tl.constexpr,
    FEW_UNITS: tl.constexpr, FEW_DEPTH: tl.constexpr, FEW_STAGES: tl.constexpr,
    UNITS: tl.constexpr, DEPTH: tl.constexpr, UP_STAGES: tl.constexpr,
    ROWS: tl.constexpr, AHEAD: tl.constexpr, COLUMNS: tl.constexpr, DOWN_STAGES: tl.constexpr,
    PHASE: tl.constexpr, AFTER: tl.constexpr,
):  # fmt: skip
    """Up projection of the open units, each program its share; a barrier; down projection, each program its rows.

    LISTED: open blocks are listed, their units shared out evenly, and h is written without gaps; otherwise (blocks of
        a few units, or very many blocks) all units are gone through and what is closed is masked.
    AHEAD: of one token, columns of the down projection that are asked for before the barrier.
    PHASE: 0 is everything, for which all programs must be running at once; 1 and 2 are two launches and no barrier.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    token = tl.arange(0, TOKENS)
    there = token < tokens
    if AFTER:
        cuda.gdc_wait()

    if LISTED:
        flag = tl.arange(0, FLAGS)
        is_open = tl.load(opened + flag, flag < blocks, 0)
        seen = tl.cumsum(is_open, 0)
        count = tl.max(seen, 0)
        # Every program writes the same list, so each may read it without waiting for the others.
        tl.store(order + seen - 1, flag, is_open > 0)
        tl.debug_barrier()
        open_units = count * BLOCK
        pieces = count * ((BLOCK + PIECE - 1) // PIECE)
    else:
        open_units = units
        pieces = units

    if PHASE != 2:
        share = (open_units + programs - 1) // programs
        start = program * share
        end = tl.minimum(start + share, open_units)
        if share <= FEW_UNITS:
            up_share(
                x, up, up_bias, value, value_bias, factor, order, h, start, end, tokens, inputs, units, blocks, width,
                UP_BIAS, VALUE, VALUE_BIAS, ACTIVATION, BLOCK, LISTED, TOKENS, FEW_UNITS, FEW_DEPTH, FEW_STAGES,
            )  # fmt: skip
        else:
            up_share(
                x, up, up_bias, value, value_bias, factor, order, h, start, end, tokens, inputs, units, blocks, width,
                UP_BIAS, VALUE, VALUE_BIAS, ACTIVATION, BLOCK, LISTED, TOKENS, UNITS, DEPTH, UP_STAGES,
            )  # fmt: skip

    if PHASE == 0:
        tl.debug_barrier()
        tl.atomic_add(arrived, 1, sem="release")
    if PHASE != 1:
        for tile in range(program, (outputs + ROWS - 1) // ROWS, programs):
            row = tile * ROWS + tl.arange(0, ROWS)
            here = row < outputs
            first_row = down + tl.cast(tile * ROWS, tl.int64) * units
            offset = tl.arange(0, ROWS) * units
            result = tl.zeros([ROWS, TOKENS], tl.float32)
            if AHEAD > 0:
                unit_0, place_0, live_0 = open_columns(
                    order, opened, 0, pieces, units, BLOCK, LISTED, PIECE, ALIGNED, AHEAD
                )
                at_0 = first_row + (offset[:, None] + unit_0[None, :])
                w_0 = tl.load(at_0, here[:, None] & live_0[None, :], 0.0, eviction_policy="evict_first")
            if PHASE == 0:
                while arrivals(arrived) < programs:
                    pass
            if AHEAD > 0:
                a_0 = tl.load(h + place_0, live_0, 0.0)
                result += tl.sum(w_0.to(tl.float32) * a_0.to(tl.float32)[None, :], 1)[:, None]
            if pieces > AHEAD // PIECE:  # the start of a pipelined loop costs something even if there is nothing to do
                for first in tl.range(AHEAD // PIECE, pieces, COLUMNS // PIECE, num_stages=DOWN_STAGES):
                    unit, place, live = open_columns(
                        order, opened, first, pieces, units, BLOCK, LISTED, PIECE, ALIGNED, COLUMNS
                    )
                    at = first_row + (offset[:, None] + unit[None, :])
                    w = tl.load(at, here[:, None] & live[None, :], 0.0, eviction_policy="evict_first")
                    if TOKENS == 1:
                        a = tl.load(h + place, live, 0.0)
                        result += tl.sum(w.to(tl.float32) * a.to(tl.float32)[None, :], 1)[:, None]
                    else:
                        a = tl.load(h + token[None, :] * width + place[:, None], there[None, :] & live[:, None], 0.0)
                        result = tl.dot(w, a, result, input_precision="ieee")
            if DOWN_BIAS:
                result += tl.load(down_bias + row, here, 0.0).to(tl.float32)[:, None]
            tl.store(y + token[None, :] * outputs + row[:, None], result, here[:, None] & there[None, :])
