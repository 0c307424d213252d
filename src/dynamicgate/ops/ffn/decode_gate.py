"""The Triton kernels of a gate network for 1 to 16 tokens: linear maps, and which blocks they open.

Arrays are [row of the weight, token]; every sum has one fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def gate_logits(
    x, weight, bias, row, here, tokens, inputs,
    BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """weight_RD x_TD' + bias_R, in float32, for so few rows that tensor cores would wait for each other's sums."""
    token = tl.arange(0, TOKENS)
    there = token < tokens
    offset = row.to(tl.int64) * inputs
    products = tl.zeros([ROWS, TOKENS, DEPTH], tl.float32)
    for start in tl.range(0, inputs, DEPTH, num_stages=STAGES):
        k = start + tl.arange(0, DEPTH)
        inside = k < inputs
        w = tl.load(weight + offset[:, None] + k[None, :], here[:, None] & inside[None, :], 0.0)
        a = tl.load(x + token[:, None] * inputs + k[None, :], there[:, None] & inside[None, :], 0.0)
        products += w.to(tl.float32)[:, None, :] * a.to(tl.float32)[None, :, :]
    z = tl.sum(products, 2)
    if BIAS:
        z += tl.load(bias + row, here, 0.0).to(tl.float32)[:, None]
    return z


@triton.jit
def cut_of(cut, cuts, stride, block, here, CUTS: tl.constexpr):
    """What logits must exceed: one number for all blocks, or one for each."""
    if CUTS:
        found = tl.load(cuts + block * stride, here, 0.0)[:, None]
    else:
        found = cut
    return found


@triton.jit
def settle(
    z, least, is_open, block, here, factor, opened, arrived, tokens, blocks, width,
    TOKENS: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Write what was decided: factor_TG, whether any token opens a block, and a barrier that nobody has reached.

    SCALE: open units are multiplied by 0: 1, 1: p at the temperature `width`, 2: a ramp of this width above the cut.
    """
    token = tl.arange(0, TOKENS)
    there = here[:, None] & (token < tokens)[None, :]
    is_open = is_open & there
    if SCALE == 1:
        much = tl.sigmoid(z / width)
    elif SCALE == 2:
        much = tl.minimum((z - least) / width, 1.0)
    else:
        much = 1.0
    tl.store(factor + token[None, :] * blocks + block[:, None], tl.where(is_open, much, 0.0), there)
    tl.store(opened + block, tl.max(is_open.to(tl.int32), 1), here)
    tl.store(arrived, 0, tl.program_id(0) == 0)


@triton.jit
def linear_kernel(
    x, weight, bias, out, tokens, inputs, outputs,
    BIAS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr,
    STAGES: tl.constexpr, AFTER: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """out_TR = phi(x_TD weight_RD' + bias_R) in float32: a map of the gate network that does not decide."""
    if CHAINED:
        cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = row < outputs
    if AFTER:
        cuda.gdc_wait()
    z = gate_logits(x, weight, bias, row, here, tokens, inputs, BIAS, ROWS, TOKENS, DEPTH, STAGES)
    if RELU:
        z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    token = tl.arange(0, TOKENS)
    tl.store(out + token[None, :] * outputs + row[:, None], z, here[:, None] & (token < tokens)[None, :])


@triton.jit
def gate_kernel(
    x, weight, bias, cuts, factor, opened, arrived, tokens, inputs, blocks, cut, stride, width,
    BIAS: tl.constexpr, CUTS: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, AFTER: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """The last map of the gate network, and its threshold."""
    if CHAINED:
        cuda.gdc_launch_dependents()
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = block < blocks
    if AFTER:
        cuda.gdc_wait()
    z = gate_logits(x, weight, bias, block, here, tokens, inputs, BIAS, ROWS, TOKENS, DEPTH, STAGES)
    least = cut_of(cut, cuts, stride, block, here, CUTS)
    settle(z, least, z > least, block, here, factor, opened, arrived, tokens, blocks, width, TOKENS, SCALE)


@triton.jit
def rank_kernel(
    logits, cuts, factor, opened, arrived, tokens, blocks, cut, stride, width, top_k,
    CUTS: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, OTHERS: tl.constexpr,
    AFTER: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Threshold, or among the `top_k` largest of the token: a block counts those ahead of it, equals by their index."""
    if CHAINED:
        cuda.gdc_launch_dependents()
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    here = block < blocks
    token = tl.arange(0, TOKENS)
    there = token < tokens
    if AFTER:
        cuda.gdc_wait()
    z = tl.load(logits + token[None, :] * blocks + block[:, None], here[:, None] & there[None, :], 0.0)
    ahead = tl.zeros([ROWS, TOKENS], tl.int32)
    for start in range(0, blocks, OTHERS):
        other = start + tl.arange(0, OTHERS)
        mask = there[:, None] & (other < blocks)[None, :]
        theirs = tl.load(logits + token[:, None] * blocks + other[None, :], mask, -float("inf"))[None, :, :]
        first = (other[None, :] < block[:, None])[:, None, :]
        ahead += tl.sum(((theirs > z[:, :, None]) | ((theirs == z[:, :, None]) & first)).to(tl.int32), 2)
    least = cut_of(cut, cuts, stride, block, here, CUTS)
    is_open = (z > least) | (ahead < top_k)
    settle(z, least, is_open, block, here, factor, opened, arrived, tokens, blocks, width, TOKENS, SCALE)
