"""The backward pass of `gated_ffn` on Triton: which kernels run, and on what. Only wanted gradients are computed."""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.ops.ffn import backward_kernels, dense_gate_gradient
from dynamicgate.ops.ffn import index as indexing
from dynamicgate.ops.ffn.grouped_down import add_down, sum_down
from dynamicgate.ops.ffn.grouped_launch import Job, descriptor, make_job, tma_usable
from dynamicgate.ops.ffn.index import Index
from dynamicgate.ops.ffn.saved import Saved
from dynamicgate.ops.ffn.tune import power_of_2
from dynamicgate.ops.ffn.weights import FFNWeights


def backward(
    dy: Tensor,
    x: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    block: int,
    activation: str,
    gate_gradient: str,
    deterministic: bool,
    wanted: set[str],
    saved: Saved,
) -> dict[str, Tensor]:
    """The gradients of the `wanted` ones among x, factor and the fields of `FFNWeights`, by name."""
    up, down, value = weights.up, weights.down, weights.value
    T, N, G = x.shape[0], up.shape[0], factor.shape[1]
    if not T:
        inputs = {"x": x, "factor": factor, "up": up, "down": down, "value": up}
        inputs |= {"up_bias": up[:, 0], "down_bias": down[:, 0], "value_bias": up[:, 0]}
        return {name: torch.zeros_like(t) for name, t in inputs.items() if name in wanted}
    job = make_job(x, factor, block, N, shared_pattern=False, deterministic=deterministic)
    index = indexing.view_index(saved.index_buffer, T, G, job.rows)
    found: dict[str, Tensor] = {}
    if "down" in wanted:
        found["down"] = _weight_gradient(job, index, saved.hidden, dy, torch.empty_like(down), transposed=True)
    if "down_bias" in wanted:
        found["down_bias"] = dy.sum(0)
    if not wanted - {"down", "down_bias"}:
        return found
    dz = torch.empty_like(saved.hidden)
    dv = torch.empty_like(saved.hidden) if value is not None else saved.val
    compute = _dense_hidden_gradient if gate_gradient == "dense" else _hidden_gradient
    dfactor = compute(job, index, dy, factor, weights, activation, saved, dz, dv)
    if "x" in wanted:
        dx = found["x"] = torch.empty_like(x)
        products = [(dz, up)] if value is None else [(dz, up), (dv, value)]
        if job.atomic:
            add_down(job, index, products, False, dx.zero_())
        else:
            sum_down(job, index, products, False, None, dx)
    if "up" in wanted:
        found["up"] = _weight_gradient(job, index, dz, x, torch.empty_like(up), transposed=False)
    if "factor" in wanted:
        found["factor"] = dfactor
    if "up_bias" in wanted:
        found["up_bias"] = _bias_gradient(job, index, dz)
    if "value" in wanted:
        found["value"] = _weight_gradient(job, index, dv, x, torch.empty_like(up), transposed=False)
    if "value_bias" in wanted:
        found["value_bias"] = _bias_gradient(job, index, dv)
    return found


def _dense_hidden_gradient(
    job: Job,
    index: Index,
    dy: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    activation: str,
    saved: Saved,
    dz: Tensor,
    dv: Tensor,
) -> Tensor:
    """dfactor of all blocks, open or closed; dz and dv of the assignments into the last two arguments."""
    dh, dfactor, tile = dy @ weights.down, torch.empty_like(factor), job.tile("rowwise")
    dense_gate_gradient.gradients_from_dense[(-(-job.tokens // tile.depth), job.blocks)](
        dh, factor, saved.pre, saved.val, dz, dv, dfactor, index.before_TQ, index.slots_TG, job.tokens, job.units,
        job.blocks, ACTIVATION=activation, VALUE=weights.value is not None, BLOCK=job.block, ROWS=tile.depth,
        COLUMNS=min(tile.columns, power_of_2(job.block)), GROUP=indexing.GROUP.value,
    )  # fmt: skip
    return dfactor


def _hidden_gradient(
    job: Job,
    index: Index,
    dy: Tensor,
    factor: Tensor,
    weights: FFNWeights,
    activation: str,
    saved: Saved,
    dz: Tensor,
    dv: Tensor,
) -> Tensor:
    """dfactor, 0 for closed blocks; dz and dv of the assignments into the last two arguments."""
    O, tile = dy.shape[1], job.tile("hidden_gradient")
    tma = tma_usable(tile, weights.down)
    parts = factor.new_empty(job.tokens, job.blocks, -(-job.block // tile.columns))
    even = job.even and O % tile.depth == 0 and job.block % tile.columns == 0
    backward_kernels.hidden_gradient[job.grid(tile)](
        dy, descriptor(weights.down, tile.depth, tile.columns, tma), factor, saved.hidden, saved.pre, saved.val, dz, dv,
        parts, index.spans_G2, index.tokens_P, index.tiles_M, O, job.units, job.blocks, ACTIVATION=activation,
        VALUE=weights.value is not None, PRE=bool(saved.pre.numel()), TMA=tma, **job.sizes(tile, even),
    )  # fmt: skip
    return torch.where(factor != 0, parts.sum(-1), 0.0)


def _weight_gradient(job: Job, index: Index, a: Tensor, b: Tensor, out: Tensor, transposed: bool) -> Tensor:
    """out[n, c] = sum of a[slot, n] b[t, c] over the slots of the block of n; transposed: out[c, n]."""
    tile, C = job.tile("down_gradient" if transposed else "up_gradient"), b.shape[1]
    units, width = (tile.columns, tile.rows) if transposed else (tile.rows, tile.columns)
    even = job.even and job.block % units == 0 and C % width == 0
    tma = job.even and tma_usable(tile, a)
    backward_kernels.weight_gradient[job.grid(tile)](
        a, b, out, index.spans_G2, index.tokens_P, job.units, C, job.blocks, descriptor(a, tile.depth, units, tma),
        TRANSPOSED=transposed, TMA=tma, WIDE=b.numel() >= 2**31, **job.sizes(tile, even),
    )  # fmt: skip
    return out


def _bias_gradient(job: Job, index: Index, a: Tensor) -> Tensor:
    """The sum over the slots of each block."""
    out, columns = a.new_empty(job.units), min(64, power_of_2(job.block))
    backward_kernels.bias_gradient[(job.blocks, -(-job.block // columns))](
        a, out, index.spans_G2, job.units, BLOCK=job.block, ROWS=min(64, job.rows), COLUMNS=columns
    )
    return out
