"""How the kernels for few tokens are cut and launched: the gate network, then everything else in one.

A linear gate takes two launches in all; an inner map and `keep` take one more each. On Hopper a launch starts before
the one it waits for has ended (programmatic dependent launch). Nothing here asks the device anything, so all of it can
be captured into a CUDA graph.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from dynamicgate.ops.ffn.decode_gate import gate_kernel, linear_kernel, rank_kernel
from dynamicgate.ops.ffn.decode_kernels import ffn_kernel
from dynamicgate.ops.gate_net import GateNet

_LEAST_LISTED = 16  # units: smaller blocks are masked, unit by unit
_MOST_LISTED = 1024  # blocks: more than that are masked, too
_LONGEST_PIECE = 128  # columns that are looked up together


class Decided(NamedTuple):
    """What the gate leaves for the rest."""

    factor_TG: Tensor
    opened_G: Tensor  # whether any token opens it
    arrived: Tensor  # programs that have reached the barrier: none


class Tiles(NamedTuple):
    """What one program does at a time. Sizes are for two bytes an element; chosen on an H200."""

    few: tuple[int, int, int]  # units, inputs, stages of the up projection, where a program has no more units than that
    many: tuple[int, int, int]  # the same where it has more
    rows: int  # outputs of the down projection
    ahead: int  # hidden units it asks for before the barrier
    columns: tuple[int, int]  # hidden units at a time, stages
    warps: int
    programs: int  # on each multiprocessor


ONE = Tiles(few=(8, 4096, 1), many=(16, 256, 8), rows=16, ahead=2048, columns=(512, 3), warps=4, programs=2)
SEVERAL = Tiles(few=(32, 256, 6), many=(128, 128, 5), rows=32, ahead=0, columns=(256, 9), warps=4, programs=1)


def launch(
    x: Tensor,
    gate: GateNet,
    up: Tensor,
    down: Tensor,
    block: int,
    activation: str,
    up_bias: Tensor | None,
    down_bias: Tensor | None,
    value: Tensor | None,
    value_bias: Tensor | None,
) -> Tensor:
    """y for 1 to 16 tokens."""
    x, up, down = x.contiguous(), up.contiguous(), down.contiguous()
    up_bias, down_bias, value, value_bias = map(_contiguous, (up_bias, down_bias, value, value_bias))
    early = x.is_cuda and torch.cuda.get_device_capability(x.device)[0] >= 9
    decided = _decide(x, gate, early)
    (T, D), (O, N), G = x.shape, down.shape, gate.blocks
    listed = block >= _LEAST_LISTED and G <= _MOST_LISTED
    piece = min(_power_of_2(block), _LONGEST_PIECE) if listed else 1
    tiles = ONE if T == 1 and listed else SEVERAL
    programs = tiles.programs * _multiprocessors(x.device)
    order, width = torch.empty(G, dtype=torch.int32, device=x.device), G * block if listed else N
    h, y = x.new_empty(T, width), x.new_empty(T, O)
    # All programs at once on a GPU; Triton's interpreter runs one after the other, and a barrier would never open.
    for phase in (0,) if x.is_cuda else (1, 2):
        ffn_kernel[(programs,)](
            x, up, up_bias, value, value_bias, down, down_bias, decided.factor_TG, decided.opened_G, order,
            decided.arrived, h, y, T, D, N, G, O, width,
            UP_BIAS=up_bias is not None, VALUE=value is not None, VALUE_BIAS=value_bias is not None,
            DOWN_BIAS=down_bias is not None, ACTIVATION=activation, BLOCK=block, LISTED=listed, FLAGS=_power_of_2(G),
            PIECE=piece, ALIGNED=math.gcd(block, piece, N, 16), TOKENS=1 if tiles is ONE else 16, PHASE=phase,
            AFTER=early, **_sizes(tiles, x, D, N, O, piece, programs), **_launched(early, x.is_cuda),
        )  # fmt: skip
    return y


def _decide(x: Tensor, gate: GateNet, early: bool) -> Decided:
    """Run the gate network: inner map, logits, threshold."""
    T, G = x.shape[0], gate.blocks
    decided = Decided(
        torch.empty(T, G, dtype=torch.float32, device=x.device),
        torch.empty(G, dtype=torch.int32, device=x.device),
        torch.empty(1, dtype=torch.int32, device=x.device),
    )
    number, cuts = (0.0, gate.cut.float().contiguous()) if isinstance(gate.cut, Tensor) else (float(gate.cut), None)
    rule = {"cut": number, "stride": 0 if cuts is None else cuts.ndim, "width": gate.soft_width or gate.tau or 1.0}
    scale = 2 if gate.soft_width is not None else int(gate.tau is not None)
    kinds = {"CUTS": cuts is not None, "SCALE": scale, "CHAINED": early}
    maps = [(weight.contiguous(), _contiguous(bias)) for weight, bias in zip(gate.weights, gate.biases, strict=True)]
    last_weight, last_bias = maps[-1]
    a, after = x, False
    for weight, bias in maps if gate.top_k else maps[:-1]:
        R, K = weight.shape
        z = torch.empty(T, R, dtype=torch.float32, device=x.device)
        linear_kernel[_gate_programs(T, R)](
            a, weight, bias, z, T, K, R, BIAS=bias is not None, CHAINED=early, AFTER=after,
            RELU=gate.hidden == "relu" and weight is not last_weight, **_gate_sizes(T, R, K), **_launched(after),
        )  # fmt: skip
        a, after = z, early
    if gate.top_k:
        rank_kernel[(triton.cdiv(G, 16),)](
            a, cuts, *decided, T, G, top_k=gate.top_k, **rule, **kinds, AFTER=after, ROWS=16, TOKENS=_power_of_2(T),
            OTHERS=max(16, 256 // _power_of_2(T)), **_launched(after),
        )  # fmt: skip
    else:
        gate_kernel[_gate_programs(T, G)](
            a, last_weight, last_bias, cuts, *decided, T, a.shape[1], G, **rule, **kinds, AFTER=after,
            BIAS=last_bias is not None, **_gate_sizes(T, *last_weight.shape), **_launched(after),
        )  # fmt: skip
    return decided


def _gate_rows(T: int, R: int) -> int:
    """Rows of a map that one program takes: few, so that all multiprocessors have some."""
    return 16 if R > 2048 else 1 if T == 1 else 2


def _gate_programs(T: int, R: int) -> tuple[int]:
    return (triton.cdiv(R, _gate_rows(T, R)),)


def _gate_sizes(T: int, R: int, K: int) -> dict[str, int]:
    rows, tokens = _gate_rows(T, R), _power_of_2(T)
    most = 4096 if T == 1 else min(512, 16384 // (rows * tokens))
    depth = max(16, min(_power_of_2(K), most // rows if T == 1 else most))
    return {
        "ROWS": rows,
        "TOKENS": tokens,
        "DEPTH": depth,
        "STAGES": 1 if T == 1 else 4,
        "num_warps": 4 if T == 1 or T > 8 else 8,
    }


def _sizes(tiles: Tiles, x: Tensor, D: int, N: int, O: int, piece: int, programs: int) -> dict[str, int]:
    """The tiles for this layer: as large as it, in as many stages as shared memory holds."""
    size, memory = x.element_size(), _shared_memory(x.device) // tiles.programs
    tokens = 1 if tiles is ONE else 16
    share = _power_of_2(triton.cdiv(N, programs))

    def up(units: int, depth: int, stages: int) -> tuple[int, int, int]:
        units, depth = max(16, min(units, share)) if tokens > 1 else units, depth * 2 // size
        depth = max(16, min(depth, _power_of_2(D)))
        return units, depth, max(1, min(stages, memory // ((units + tokens) * depth * size)))

    rows = tiles.rows
    while rows > tokens and triton.cdiv(O, rows) < 0.9 * programs:
        rows //= 2
    columns = max(16, piece, min(tiles.columns[0] * 2 // size, _power_of_2(N)))
    few, many = up(*tiles.few), up(*tiles.many)
    return {
        "FEW_UNITS": few[0],
        "FEW_DEPTH": few[1],
        "FEW_STAGES": few[2],
        "UNITS": many[0],
        "DEPTH": many[1],
        "UP_STAGES": many[2],
        "ROWS": rows,
        "AHEAD": max(piece, min(tiles.ahead * 2 // size, _power_of_2(N))) if tiles.ahead else 0,
        "COLUMNS": columns,
        "DOWN_STAGES": max(1, min(tiles.columns[1], memory // ((rows + tokens) * columns * size))),
        "num_warps": tiles.warps,
    }


def _launched(early: bool, together: bool = False) -> dict[str, Any]:
    """How a kernel starts: before the one it waits for has ended; only if all its programs can run at once."""
    return {**({"launch_pdl": True} if early else {}), **({"launch_cooperative_grid": True} if together else {})}


def _contiguous(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.contiguous()


def _power_of_2(n: int) -> int:
    """The next one."""
    return 1 << (n - 1).bit_length()


@cache
def _multiprocessors(device: torch.device) -> int:
    """Of a GPU; a few where Triton interprets its kernels."""
    return _properties(device)["multiprocessor_count"] if device.type == "cuda" else 3


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes that a program may have, less some that the compiler needs."""
    return _properties(device)["max_shared_mem"] - 4096 if device.type == "cuda" else 1 << 16


def _properties(device: torch.device) -> dict[str, int]:
    index = torch.cuda.current_device() if device.index is None else device.index
    found: dict[str, int] = triton.runtime.driver.active.utils.get_device_properties(index)
    return found
