"""Triton kernels for the gate network of `decode_ffn`: its linear maps, and which blocks their logits open.

Arrays are [row of the weight, token]. Every sum is in a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

COUNTERS = tl.constexpr(256)  # of programs that are done with something: all of them, and those with the same rows


@triton.jit
def gate_logits(
    x, weight, bias, row, row_mask, tokens, inputs,
    BIAS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, DEPTH: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """weight_RD x_TD' + bias_R in float32, for so few rows that tensor cores would mostly wait for sums."""
    token = tl.arange(0, TOKENS)
    token_mask = token < tokens
    offset = row.to(tl.int64) * inputs
    products = tl.zeros([ROWS, TOKENS, DEPTH], tl.float32)
    for start in tl.range(0, inputs, DEPTH, num_stages=STAGES):
        k = start + tl.arange(0, DEPTH)
        inside = k < inputs
        w = tl.load(weight + offset[:, None] + k[None, :], row_mask[:, None] & inside[None, :], 0.0)
        a = tl.load(x + token[:, None] * inputs + k[None, :], token_mask[:, None] & inside[None, :], 0.0)
        products += w.to(tl.float32)[:, None, :] * a.to(tl.float32)[None, :, :]
    z = tl.sum(products, 2)
    if BIAS:
        z += tl.load(bias + row, row_mask, 0.0).to(tl.float32)[:, None]
    return z


@triton.jit
def load_cut(cut, cuts, stride, block, row_mask, CUTS: tl.constexpr):
    """The number that a logit must exceed: one for all blocks, or one for each."""
    if CUTS:
        found = tl.load(cuts + block * stride, row_mask, 0.0)
    else:
        found = cut
    return found


@triton.jit
def clear_counters(arrived):
    """Counters of 0, by the first program."""
    counter = tl.arange(0, COUNTERS)
    tl.store(arrived + counter, tl.zeros_like(counter), (counter < COUNTERS) & (tl.program_id(0) == 0))


@triton.jit
def write_decision(
    z, least, is_open, block, row_mask, factor, opened, arrived, tokens, blocks, width,
    TOKENS: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    """Write the decision: factor_TG, whether any token opens a block, and counters of 0.

    SCALE says what open units are multiplied by. 0: by 1. 1: by p, where `width` is tau. 2: by how far the logit is
    above the cut, where `width` is soft_width, at most 1. 3: the same without that limit. A logit that is NaN is the
    factor itself, so that it shows in y.
    """
    token = tl.arange(0, TOKENS)
    mask = row_mask[:, None] & (token < tokens)[None, :]
    is_nan = z != z
    is_open = (is_open | is_nan) & mask
    if SCALE == 1:
        scale = tl.sigmoid(z / width)
    elif SCALE == 2:
        scale = tl.minimum((z - least) / width, 1.0)
    elif SCALE == 3:
        scale = (z - least) / width
    else:
        scale = 1.0
    scale = tl.where(is_nan, z, scale)
    tl.store(factor + token[None, :] * blocks + block[:, None], tl.where(is_open, scale, 0.0), mask)
    tl.store(opened + block, tl.max(is_open.to(tl.int32), 1), row_mask)
    clear_counters(arrived)


@triton.jit
def gate_linear_kernel(
    x, weight, bias, out, opened, arrived, tokens, inputs, outputs,
    BIAS: tl.constexpr, RELU: tl.constexpr, CLEAR: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr, RELEASE_NEXT: tl.constexpr,
):  # fmt: skip
    """out_TR = phi(x_TD weight_RD' + bias_R) in float32: a map of the gate network that does not decide yet.

    CLEAR: it is the last one, and its programs set the flags of the blocks and the counters to 0 for
        `gate_shares_kernel`.
    """
    if RELEASE_NEXT:
        cuda.gdc_launch_dependents()
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = row < outputs
    if DEPENDENT:
        cuda.gdc_wait()
    z = gate_logits(x, weight, bias, row, row_mask, tokens, inputs, BIAS, ROWS, TOKENS, DEPTH, STAGES)
    if RELU:
        z = tl.maximum(z, 0.0, propagate_nan=tl.PropagateNan.ALL)
    token = tl.arange(0, TOKENS)
    tl.store(out + token[None, :] * outputs + row[:, None], z, row_mask[:, None] & (token < tokens)[None, :])
    if CLEAR:
        tl.store(opened + row, tl.zeros_like(row), row_mask)
        clear_counters(arrived)


@triton.jit
def gate_kernel(
    x, weight, bias, cuts, factor, opened, arrived, tokens, inputs, blocks, cut, stride, width,
    BIAS: tl.constexpr, CUTS: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
    DEPTH: tl.constexpr, STAGES: tl.constexpr, DEPENDENT: tl.constexpr, RELEASE_NEXT: tl.constexpr,
):  # fmt: skip
    """The last map of the gate network, and the threshold."""
    if RELEASE_NEXT:
        cuda.gdc_launch_dependents()
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = block < blocks
    if DEPENDENT:
        cuda.gdc_wait()
    z = gate_logits(x, weight, bias, block, row_mask, tokens, inputs, BIAS, ROWS, TOKENS, DEPTH, STAGES)
    least = load_cut(cut, cuts, stride, block[:, None], row_mask[:, None], CUTS)
    write_decision(z, least, z > least, block, row_mask, factor, opened, arrived, tokens, blocks, width, TOKENS, SCALE)


@triton.jit
def gate_top_k_kernel(
    logits, cuts, factor, opened, arrived, tokens, blocks, cut, stride, width, top_k,
    CUTS: tl.constexpr, SCALE: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr, OTHERS: tl.constexpr,
    DEPENDENT: tl.constexpr, RELEASE_NEXT: tl.constexpr,
):  # fmt: skip
    """A block is open above the threshold or among the token's `top_k` largest: it counts the logits ahead of its own,
    where a tie goes to the lower index."""
    if RELEASE_NEXT:
        cuda.gdc_launch_dependents()
    block = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_mask = block < blocks
    token = tl.arange(0, TOKENS)
    token_mask = token < tokens
    if DEPENDENT:
        cuda.gdc_wait()
    z = tl.load(logits + token[None, :] * blocks + block[:, None], row_mask[:, None] & token_mask[None, :], 0.0)
    ahead = tl.zeros([ROWS, TOKENS], tl.int32)
    for start in range(0, blocks, OTHERS):
        other = start + tl.arange(0, OTHERS)
        mask = token_mask[:, None] & (other < blocks)[None, :]
        theirs = tl.load(logits + token[:, None] * blocks + other[None, :], mask, -float("inf"))[None, :, :]
        first = (other[None, :] < block[:, None])[:, None, :]
        ahead += tl.sum(((theirs > z[:, :, None]) | ((theirs == z[:, :, None]) & first)).to(tl.int32), 2)
    least = load_cut(cut, cuts, stride, block[:, None], row_mask[:, None], CUTS)
    is_open = (z > least) | (ahead < top_k)
    write_decision(z, least, is_open, block, row_mask, factor, opened, arrived, tokens, blocks, width, TOKENS, SCALE)


@triton.jit
def gate_shares_kernel(
    logits, cuts, factor, opened, blocks, cut, stride, width, top_k,
    CUTS: tl.constexpr, BLOCKS: tl.constexpr, DEPENDENT: tl.constexpr, RELEASE_NEXT: tl.constexpr,
):  # fmt: skip
    """The open blocks of one token share one weight by the softmax of their logits over `width`, which is tau. A logit
    that is NaN makes all open blocks NaN, so that it shows in y."""
    if RELEASE_NEXT:
        cuda.gdc_launch_dependents()
    block = tl.arange(0, BLOCKS)
    exists = block < blocks
    if DEPENDENT:
        cuda.gdc_wait()
    at = tl.program_id(0) * blocks + block
    z = tl.load(logits + at, exists, -float("inf"))
    is_nan = z != z
    is_open = z > load_cut(cut, cuts, stride, block, exists, CUTS)
    # The largest one after the other, NaN first, a tie goes to the lowest index; those that were found are -inf.
    least: tl.constexpr = -3.4028234663852886e38
    rest = tl.where(is_nan, float("inf"), tl.maximum(z, least))
    rest = tl.where(exists, rest, -float("inf"))
    for _ in range(top_k):
        first = tl.min(tl.where(rest == tl.max(rest, 0), block, BLOCKS), 0)
        is_open = is_open | (block == first)
        rest = tl.where(block == first, -float("inf"), rest)
    is_open = (is_open | is_nan) & exists
    top = tl.max(tl.where(is_open, z / width, -float("inf")), 0)
    top = tl.where(top == -float("inf"), 0.0, top)  # if all are closed
    weight = tl.where(is_open, tl.exp(tl.where(is_open, z / width, 0.0) - top), 0.0)
    total = tl.sum(weight, 0)
    share = weight / tl.where(total == 0.0, 1.0, total)
    tl.store(factor + at, tl.where(is_open, share, 0.0), exists)
    tl.store(opened + block, tl.full((BLOCKS,), 1, tl.int32), is_open)
