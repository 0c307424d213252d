"""Launches the kernels of `decode_ffn`: the gate network, then everything else in one kernel, which `decode_given`
launches alone.

With a linear gate there are two launches; an inner map and `top_k` take one more each. On Hopper a kernel starts before
the one it waits for has finished (programmatic dependent launch). Nothing here waits for the device, so a call can be
captured into a CUDA graph.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from dynamicgate.ops.ffn.decode_gate import (
    COUNTERS,
    gate_kernel,
    gate_linear_kernel,
    gate_shares_kernel,
    gate_top_k_kernel,
)
from dynamicgate.ops.ffn.decode_kernels import decode_kernel
from dynamicgate.ops.ffn.tune import power_of_2
from dynamicgate.ops.ffn.weights import FFNWeights, map_weights
from dynamicgate.ops.gate_net import GateNet

_LEAST_LISTED = 16  # units: smaller blocks are not listed but masked, unit by unit
_MOST_LISTED = 1024  # blocks: if there are more, they are masked too
MOST_SPLITS = 8  # programs that share a tile of outputs
_LONGEST_PIECE = 128  # columns that are looked up together


class Decision(NamedTuple):
    """What the gate kernels write for the layer."""

    factor_TG: Tensor
    opened_G: Tensor
    """Whether any token opens the block."""
    arrived: Tensor
    """How many programs have reached the barrier, and how many of each group with the same rows are done: none yet."""


class Tiles(NamedTuple):
    """What one program does at a time. Sizes are for elements of two bytes and were chosen on an H200."""

    small: tuple[int, int, int]
    """(units, inputs, stages) of the up projection where a program has no more than so many units."""
    large: tuple[int, int, int]
    """The same where it has more."""
    rows: int
    """Outputs of the down projection."""
    ahead: int
    """Hidden units whose weights it loads before the barrier."""
    columns: tuple[int, int]
    """(hidden units, stages) of the down projection."""
    warps: int
    programs: int
    """On each multiprocessor."""


ONE_TOKEN = Tiles(small=(8, 4096, 1), large=(16, 256, 8), rows=16, ahead=2048, columns=(512, 3), warps=4, programs=2)
SEVERAL_TOKENS = Tiles(small=(32, 256, 6), large=(128, 128, 5), rows=32, ahead=0, columns=(256, 9), warps=4, programs=1)
MANY_TOKENS = SEVERAL_TOKENS._replace(rows=64, columns=(128, 9), warps=8)  # as many activations are read as weights


def launch(x: Tensor, gate: GateNet, weights: FFNWeights, block: int, activation: str) -> Tensor:
    """y for 1 to 16 tokens."""
    x = x.contiguous()
    early = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9
    return _project(x, _decide(x, gate, early), weights, block, activation, flagged=True, dependent=early)


def launch_given(x: Tensor, factor_TG: Tensor, weights: FFNWeights, block: int, activation: str) -> Tensor:
    """y for 1 to 64 tokens whose gates have decided."""
    factor_TG = factor_TG.float().contiguous()
    flagged = not _is_listed(block, factor_TG.shape[1])
    opened_G = (factor_TG != 0).any(0).int() if flagged else torch.empty(0, dtype=torch.int32, device=x.device)
    decision = Decision(factor_TG, opened_G, torch.zeros(COUNTERS.value, dtype=torch.int32, device=x.device))
    return _project(x.contiguous(), decision, weights, block, activation, flagged=flagged, dependent=False)


def _is_listed(block: int, blocks: int) -> bool:
    return block >= _LEAST_LISTED and blocks <= _MOST_LISTED


def _project(
    x: Tensor, decision: Decision, weights: FFNWeights, block: int, activation: str, *, flagged: bool, dependent: bool
) -> Tensor:
    """Both projections. dependent: start before the gate's kernel has ended."""
    up, down, value, up_bias, down_bias, value_bias = map_weights(weights, Tensor.contiguous)
    (T, D), (O, N), G = x.shape, down.shape, decision.factor_TG.shape[1]
    listed = _is_listed(block, G)
    piece = min(power_of_2(block), _LONGEST_PIECE) if listed else 1
    tiles = ONE_TOKEN if T == 1 and listed else SEVERAL_TOKENS if T <= 16 else MANY_TOKENS
    tokens = 1 if tiles is ONE_TOKEN else max(16, power_of_2(T))
    programs = tiles.programs * _multiprocessors(x.device)
    order, width = torch.empty(G, dtype=torch.int32, device=x.device), G * block if listed else N
    h, y = x.new_empty(T, width), x.new_empty(T, O)
    sizes = _sizes(tiles, tokens, x, D, N, O, piece, programs)
    splits = sizes["SPLITS"]
    parts = torch.empty(splits, T, O, dtype=torch.float32, device=x.device) if splits > 1 else None
    # A GPU runs all programs at once. The interpreter runs one after the other, so a barrier would wait forever.
    for phase in (0,) if x.is_cuda else (1, 2):
        decode_kernel[(programs,)](
            x, up, up_bias, value, value_bias, down, down_bias, decision.factor_TG, decision.opened_G, order,
            decision.arrived, h, parts, y, T, D, N, G, O, width,
            UP_BIAS=up_bias is not None, VALUE=value is not None, VALUE_BIAS=value_bias is not None,
            DOWN_BIAS=down_bias is not None, ACTIVATION=activation, BLOCK=block, LISTED=listed, FLAGS=power_of_2(G),
            PIECE=piece, ALIGNED=math.gcd(block, piece, N, 16), TOKENS=tokens, FLAGGED=flagged,
            PHASE=phase, DEPENDENT=dependent, **sizes,
            **_launch_options(dependent, x.is_cuda),
        )  # fmt: skip
    return y


def _decide(x: Tensor, gate: GateNet, early: bool) -> Decision:
    """Run the gate network: inner map, logits, threshold or top k."""
    T, G = x.shape[0], gate.blocks
    decision = Decision(
        torch.empty(T, G, dtype=torch.float32, device=x.device),
        torch.empty(G, dtype=torch.int32, device=x.device),
        torch.empty(COUNTERS.value, dtype=torch.int32, device=x.device),
    )
    number, cuts = (0.0, gate.cut.float().contiguous()) if isinstance(gate.cut, Tensor) else (float(gate.cut), None)
    rule = {"cut": number, "stride": 0 if cuts is None else cuts.ndim, "width": gate.soft_width or gate.tau or 1.0}
    scale = 2 + int(gate.unbounded) if gate.soft_width is not None else int(gate.tau is not None)
    kinds = {"CUTS": cuts is not None, "SCALE": scale, "RELEASE_NEXT": early}
    maps = [(weight.contiguous(), _contiguous(bias)) for weight, bias in zip(gate.weights, gate.biases, strict=True)]
    last_weight, last_bias = maps[-1]
    a, dependent = x, False
    for weight, bias in maps if gate.top_k or gate.competes else maps[:-1]:
        R, K = weight.shape
        z = torch.empty(T, R, dtype=torch.float32, device=x.device)
        gate_linear_kernel[_gate_programs(T, R)](
            a, weight, bias, z, decision.opened_G, decision.arrived, T, K, R, BIAS=bias is not None, RELEASE_NEXT=early,
            DEPENDENT=dependent, RELU=gate.hidden == "relu" and weight is not last_weight,
            CLEAR=gate.competes and weight is last_weight, **_gate_sizes(T, R, K), **_launch_options(dependent),
        )  # fmt: skip
        a, dependent = z, early
    if gate.competes:
        gate_shares_kernel[(T,)](
            a, cuts, decision.factor_TG, decision.opened_G, G, top_k=gate.top_k, **rule, CUTS=cuts is not None,
            BLOCKS=power_of_2(G), DEPENDENT=dependent, RELEASE_NEXT=early, **_launch_options(dependent),
        )  # fmt: skip
    elif gate.top_k:
        gate_top_k_kernel[(triton.cdiv(G, 16),)](
            a, cuts, *decision, T, G, top_k=gate.top_k, **rule, **kinds, DEPENDENT=dependent, ROWS=16,
            TOKENS=power_of_2(T), OTHERS=max(16, 256 // power_of_2(T)), **_launch_options(dependent),
        )  # fmt: skip
    else:
        gate_kernel[_gate_programs(T, G)](
            a, last_weight, last_bias, cuts, *decision, T, a.shape[1], G, **rule, **kinds, DEPENDENT=dependent,
            BIAS=last_bias is not None, **_gate_sizes(T, *last_weight.shape), **_launch_options(dependent),
        )  # fmt: skip
    return decision


def _gate_rows(T: int, R: int) -> int:
    """Rows of a map that one program takes: few, so that every multiprocessor gets some."""
    return 16 if R > 2048 else 1 if T == 1 or R <= 256 else 2


def _gate_programs(T: int, R: int) -> tuple[int]:
    return (triton.cdiv(R, _gate_rows(T, R)),)


def _gate_sizes(T: int, R: int, K: int) -> dict[str, int]:
    rows, tokens = _gate_rows(T, R), power_of_2(T)
    most = 4096 if T == 1 else min(512, 16384 // (rows * tokens))
    depth = max(16, min(power_of_2(K), most // rows if T == 1 else most))
    return {
        "ROWS": rows,
        "TOKENS": tokens,
        "DEPTH": depth,
        "STAGES": 1 if T == 1 else 4,
        "num_warps": 4 if T == 1 or rows * tokens > 16 else 8,
    }


def _sizes(tiles: Tiles, tokens: int, x: Tensor, D: int, N: int, O: int, piece: int, programs: int) -> dict[str, int]:
    """The tiles for this layer: no larger than the layer, and in as many stages as shared memory holds."""
    size, memory = x.element_size(), _shared_memory(x.device) // tiles.programs
    part = power_of_2(triton.cdiv(N, programs))

    def up(units: int, depth: int, stages: int) -> tuple[int, int, int]:
        units, depth = max(16, min(units, part)) if tokens > 1 else units, depth * 2 // size
        depth = max(16, min(depth, power_of_2(D)))
        return units, depth, max(1, min(stages, memory // ((units + tokens) * depth * size)))

    rows, splits = tiles.rows, 1
    if tokens > 1:
        splits = _splits(triton.cdiv(O, rows), programs)
    else:
        while rows > 1 and triton.cdiv(O, rows) < 0.9 * programs:
            rows //= 2
    columns = max(16, piece, min(tiles.columns[0] * 2 // size, power_of_2(N)))
    small, large = up(*tiles.small), up(*tiles.large)
    return {
        "SMALL_UNITS": small[0],
        "SMALL_DEPTH": small[1],
        "SMALL_STAGES": small[2],
        "UNITS": large[0],
        "DEPTH": large[1],
        "UP_STAGES": large[2],
        "ROWS": rows,
        "SPLITS": splits,
        "AHEAD": max(piece, min(tiles.ahead * 2 // size, power_of_2(N))) if tiles.ahead else 0,
        "COLUMNS": columns,
        "DOWN_STAGES": max(1, min(tiles.columns[1], memory // ((rows + tokens) * columns * size))),
        "num_warps": tiles.warps,
    }


def _splits(tiles: int, programs: int) -> int:
    """How many programs share a tile of outputs, so that at least nine of ten programs have work, or nearly."""
    if tiles >= COUNTERS.value:
        return 1

    def busy(splits: int) -> float:
        return tiles * splits / (triton.cdiv(tiles * splits, programs) * programs)

    return max(range(1, MOST_SPLITS + 1), key=lambda splits: min(0.9, busy(splits)))  # the first of equals


def _launch_options(dependent: bool, cooperative: bool = False) -> dict[str, Any]:
    """dependent: start before the previous kernel has finished. cooperative: only if all programs can run at once."""
    options = {"launch_pdl": dependent, "launch_cooperative_grid": cooperative}
    return {name: True for name, wanted in options.items() if wanted}


def _contiguous(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


@cache
def _multiprocessors(device: torch.device) -> int:
    """Of the GPU; a few where Triton interprets its kernels."""
    return _properties(device)["multiprocessor_count"] if device.type == "cuda" else 3


@cache
def _shared_memory(device: torch.device) -> int:
    """The bytes that a program may use, less some that the compiler needs."""
    return _properties(device)["max_shared_mem"] - 4096 if device.type == "cuda" else 1 << 16


def _properties(device: torch.device) -> dict[str, int]:
    index = torch.cuda.current_device() if device.index is None else device.index
    found: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return found
