"""Triton kernel of `decode_ffn` and `decode_given`: both projections for a few tokens, after the gate. decode.md
explains the design.

One token is multiplied without tensor cores; several go through `tl.dot`, padded to 16, 32 or 64. Arrays are [row of
the weight, token], so that weights are the left operand. Every sum is in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from dynamicgate.ops.ffn.tiles import activate


@triton.jit
def arrivals(arrived):
    """How many programs have reached the barrier. What they wrote before it is visible to this program then."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.s32 $0, [$1];", "=r,l", [arrived.to(tl.int64)], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def linear(
    x, weight, bias, row, row_mask, tokens, inputs,
    BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """weight_RD x_TD' + bias_R in float32. Weights are read once and must not evict anything else from L2."""
    token = tl.arange(0, TOKENS)
    token_mask = token < tokens
    offset = row.to(tl.int64) * inputs
    z = tl.zeros([ROWS, TOKENS], tl.float32)
    for start in tl.range(0, inputs, DEPTH, num_stages=STAGES):
        k = start + tl.arange(0, DEPTH)
        inside = k < inputs
        mask = row_mask[:, None] & inside[None, :]
        w = tl.load(weight + offset[:, None] + k[None, :], mask, 0.0, eviction_policy="evict_first")
        if TOKENS == 1:
            a = tl.load(x + k, inside, 0.0)
            z += tl.sum(w.to(tl.float32) * a.to(tl.float32)[None, :], 1)[:, None]
        else:
            a = tl.load(x + token[None, :] * inputs + k[:, None], token_mask[None, :] & inside[:, None], 0.0)
            z = tl.dot(w, a, z, input_precision="ieee")
    if BIAS:
        z += tl.load(bias + row, row_mask, 0.0).to(tl.float32)[:, None]
    return z


@triton.jit
def up_part(
    x, up, up_bias, value, value_bias, factor, order, h, start, end, tokens, inputs, units, blocks, width,
    UP_BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK: tl.constexpr, LISTED: tl.constexpr, TOKENS: tl.constexpr,
    UNITS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """h_TN for the positions from `start` to `end`, UNITS at a time: one program's part of the up projection."""
    token = tl.arange(0, TOKENS)
    token_mask = token < tokens
    for first in range(start, end, UNITS):
        position = first + tl.arange(0, UNITS)
        row_mask = position < end
        if LISTED:
            block = tl.load(order + position // BLOCK, row_mask, 0)
            unit = block * BLOCK + position % BLOCK
            row_mask = row_mask & (unit < units)
        else:
            block = position // BLOCK
            unit = position
        scale = tl.load(factor + token[None, :] * blocks + block[:, None], row_mask[:, None] & token_mask[None, :], 0.0)
        if LISTED:
            live = row_mask
        else:
            live = tl.max((scale != 0).to(tl.int32), 1) > 0
        u = linear(x, up, up_bias, unit, live, tokens, inputs, UP_BIAS, UNITS, TOKENS, DEPTH, STAGES)
        u = activate(u, ACTIVATION)
        if VALUE:
            u *= linear(x, value, value_bias, unit, live, tokens, inputs, VALUE_BIAS, UNITS, TOKENS, DEPTH, STAGES)
        u = tl.where(scale != 0, u * scale, 0.0)  # 0 for a token that does not open a block which another one opens
        tl.store(h + token[None, :] * width + position[:, None], u, row_mask[:, None] & token_mask[None, :])


@triton.jit
def open_columns(
    order, opened, start, total, units,
    BLOCK: tl.constexpr, LISTED: tl.constexpr, PIECE: tl.constexpr, ALIGNED: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The hidden units of COLUMNS // PIECE pieces from `start` on, their positions in h, and whether they are open."""
    if LISTED:
        PIECES: tl.constexpr = (BLOCK + PIECE - 1) // PIECE
        piece = start + tl.arange(0, COLUMNS // PIECE)
        exists = piece < total
        rank = piece // PIECES
        block = tl.load(order + rank, exists, 0)
        inner = ((piece % PIECES) * PIECE)[:, None] + tl.arange(0, PIECE)[None, :]
        unit = block[:, None] * BLOCK + inner
        position = rank[:, None] * BLOCK + inner
        live = exists[:, None] & (inner < BLOCK) & (unit < units)
        # After a reshape the compiler no longer knows that pieces are contiguous, and would not use wide loads.
        unit = tl.max_contiguous(tl.multiple_of(tl.reshape(unit, [COLUMNS]), ALIGNED), ALIGNED)
        position = tl.max_contiguous(tl.multiple_of(tl.reshape(position, [COLUMNS]), ALIGNED), ALIGNED)
        live = tl.max_constancy(tl.reshape(live, [COLUMNS]), ALIGNED)
    else:
        unit = start + tl.arange(0, COLUMNS)
        position = unit
        live = unit < units
        live = live & (tl.load(opened + unit // BLOCK, live, 0) > 0)
    return unit, position, live


@triton.jit(do_not_specialize=["tokens"])
def decode_kernel(
    x, up, up_bias, value, value_bias, down, down_bias, factor, opened, order, arrived, h, parts, y,
    tokens, inputs, units, blocks, outputs, width,
    UP_BIAS: tl.constexpr, VALUE: tl.constexpr, VALUE_BIAS: tl.constexpr, DOWN_BIAS: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, LISTED: tl.constexpr, FLAGS: tl.constexpr, PIECE: tl.constexpr,
    ALIGNED: tl.constexpr, TOKENS: tl.constexpr,
    SMALL_UNITS: tl.constexpr, SMALL_DEPTH: tl.constexpr, SMALL_STAGES: tl.constexpr,
    UNITS: tl.constexpr, DEPTH: tl.constexpr, UP_STAGES: tl.constexpr,
    ROWS: tl.constexpr, SPLITS: tl.constexpr, AHEAD: tl.constexpr, COLUMNS: tl.constexpr, DOWN_STAGES: tl.constexpr,
    PHASE: tl.constexpr, DEPENDENT: tl.constexpr, FLAGGED: tl.constexpr,
):  # fmt: skip
    """Up projection of the open units, divided among the programs; a barrier; down projection, each program its rows.

    SPLITS: programs that share the same rows, each with a part of the open units. The last to be done adds up what they
        left in `parts`, always in the same order.

    LISTED: open blocks are listed, their units are divided evenly, and h is written without gaps. Otherwise (small
        blocks, or very many of them) the kernel goes through all units and masks the closed ones.
    AHEAD: with one token, the columns of the down projection that are loaded before the barrier.
    FLAGGED: `opened` says which blocks any token opens; otherwise (only with LISTED) their factors do.
    PHASE: 0 does everything, for which all programs must be running at once; 1 and 2 are two launches instead.
    """
    program = tl.program_id(0)
    programs = tl.num_programs(0)
    token = tl.arange(0, TOKENS)
    token_mask = token < tokens
    if DEPENDENT:
        cuda.gdc_wait()

    if LISTED:
        flag = tl.arange(0, FLAGS)
        if FLAGGED:
            is_open = tl.load(opened + flag, flag < blocks, 0)
        else:
            is_open = tl.zeros([FLAGS], tl.int32)
            some: tl.constexpr = min(TOKENS, max(1, 4096 // FLAGS))  # tokens at once: every load is a wait
            for first in range(0, tokens, some):
                t = first + tl.arange(0, some)
                inside = (t < tokens)[:, None] & (flag < blocks)[None, :]
                seen = tl.load(factor + t[:, None] * blocks + flag[None, :], inside, 0.0) != 0
                is_open |= tl.max(seen.to(tl.int32), 0)
        rank = tl.cumsum(is_open, 0)
        count = tl.max(rank, 0)
        # Every program writes the same list, so each may read it without waiting for the others.
        tl.store(order + rank - 1, flag, is_open > 0)
        tl.debug_barrier()
        open_units = count * BLOCK
        pieces = count * ((BLOCK + PIECE - 1) // PIECE)
    else:
        open_units = units
        pieces = units

    if PHASE != 2:
        part = (open_units + programs - 1) // programs
        start = program * part
        end = tl.minimum(start + part, open_units)
        if part <= SMALL_UNITS:
            up_part(
                x, up, up_bias, value, value_bias, factor, order, h, start, end, tokens, inputs, units, blocks, width,
                UP_BIAS, VALUE, VALUE_BIAS, ACTIVATION, BLOCK, LISTED, TOKENS, SMALL_UNITS, SMALL_DEPTH, SMALL_STAGES,
            )  # fmt: skip
        else:
            up_part(
                x, up, up_bias, value, value_bias, factor, order, h, start, end, tokens, inputs, units, blocks, width,
                UP_BIAS, VALUE, VALUE_BIAS, ACTIVATION, BLOCK, LISTED, TOKENS, UNITS, DEPTH, UP_STAGES,
            )  # fmt: skip

    if PHASE == 0:
        tl.debug_barrier()
        tl.atomic_add(arrived, 1, sem="release")
    if PHASE != 1:
        step: tl.constexpr = COLUMNS // PIECE
        part = tl.cdiv(tl.cdiv(pieces, step), SPLITS) * step
        for item in range(program, tl.cdiv(outputs, ROWS) * SPLITS, programs):
            tile = item // SPLITS
            split = item % SPLITS
            row = tile * ROWS + tl.arange(0, ROWS)
            row_mask = row < outputs
            first_row = down + tl.cast(tile * ROWS, tl.int64) * units
            offset = tl.arange(0, ROWS) * units
            result = tl.zeros([ROWS, TOKENS], tl.float32)
            begin = AHEAD // PIECE
            end = pieces
            if SPLITS > 1:
                begin = split * part
                end = tl.minimum(begin + part, pieces)
            if AHEAD > 0:
                unit_0, position_0, live_0 = open_columns(
                    order, opened, 0, pieces, units, BLOCK, LISTED, PIECE, ALIGNED, AHEAD
                )
                at_0 = first_row + (offset[:, None] + unit_0[None, :])
                w_0 = tl.load(at_0, row_mask[:, None] & live_0[None, :], 0.0, eviction_policy="evict_first")
            if PHASE == 0:
                while arrivals(arrived) < programs:
                    pass
            if AHEAD > 0:
                a_0 = tl.load(h + position_0, live_0, 0.0)
                result += tl.sum(w_0.to(tl.float32) * a_0.to(tl.float32)[None, :], 1)[:, None]
            if end > begin:  # the start of a pipelined loop costs something even if there is nothing to do
                for first in tl.range(begin, end, step, num_stages=DOWN_STAGES):
                    unit, position, live = open_columns(
                        order, opened, first, end, units, BLOCK, LISTED, PIECE, ALIGNED, COLUMNS
                    )
                    at = first_row + (offset[:, None] + unit[None, :])
                    w = tl.load(at, row_mask[:, None] & live[None, :], 0.0, eviction_policy="evict_first")
                    if TOKENS == 1:
                        a = tl.load(h + position, live, 0.0)
                        result += tl.sum(w.to(tl.float32) * a.to(tl.float32)[None, :], 1)[:, None]
                    else:
                        a = tl.load(
                            h + token[None, :] * width + position[:, None], token_mask[None, :] & live[:, None], 0.0
                        )
                        result = tl.dot(w, a, result, input_precision="ieee")
            at_y = token[None, :] * outputs + row[:, None]
            mask_y = row_mask[:, None] & token_mask[None, :]
            last = 0
            if SPLITS > 1:
                tl.store(parts + split * tokens * outputs + at_y, result, mask_y)
                tl.debug_barrier()
                last = tl.atomic_add(arrived + 1 + tile, 1, sem="acq_rel")
            if last == SPLITS - 1:
                if SPLITS > 1:
                    result = tl.zeros([ROWS, TOKENS], tl.float32)
                    for other in range(SPLITS):
                        result += tl.load(parts + other * tokens * outputs + at_y, mask_y, 0.0, cache_modifier=".cg")
                if DOWN_BIAS:
                    result += tl.load(down_bias + row, row_mask, 0.0).to(tl.float32)[:, None]
                tl.store(y + at_y, result, mask_y)
