"""When the kernels pay off and how their work is divided: limits, a table of tiles measured on Hopper, and defaults.

The defaults run on any CUDA GPU. Where a function looks at the device, a CPU stands for Triton's interpreter.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

DTYPES = (torch.bfloat16, torch.float16, torch.float32)  # of the kernels; the reference takes any
LEAST_BLOCK = 32  # units: with smaller blocks, listing which token needs which block costs more than dense products
LEAST_WORK = 2**37  # tokens x features x units: with less, the host launches the kernels more slowly than they run
ROW_COST = 140  # writing and reading one partial output row costs as much as so many hidden units: see README.md
MOST_ATOMIC_BLOCKS = 64  # of a token, each rounded to 2 bytes: with all of them open the error is still below 1 %


class Tile(NamedTuple):
    """How the work of one kernel is divided."""

    rows: int
    columns: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1
    """On each multiprocessor."""
    tma: bool = False
    """Let the copy engine (TMA) load whatever it can."""
    registers: int | None = None
    """At most, for each thread: with fewer, more programs fit on a multiprocessor."""
    run: int = 32
    """Steps of `depth` in one loop, over as many tiles of columns as that takes; 0: all tiles of a program."""
    halves: bool = False
    """Store a tile in two halves, which leaves memory for one more stage."""


_INTERPRETED = Tile(16, 32, 16, stages=1, tma=True)  # the interpreter takes time for every row
_DEFAULT = Tile(128, 64, 32, warps=4, stages=3, programs=2)
_MEMORY_BOUND = {
    "reduce": Tile(1, 1024, 4, warps=4),  # one program for each token
    "elementwise": Tile(128, 64, 1, warps=4, programs=8),
    "rowwise": Tile(1, 512, 8, warps=4),
}


def power_of_2(n: int) -> int:
    """The smallest power of 2 that is at least n."""
    return 1 << (n - 1).bit_length()


@cache
def _table(device: torch.device) -> list[dict[str, Any]]:
    """The rows measured for this kind of GPU; none if it was not measured."""
    major, _ = torch.cuda.get_device_capability(device)
    path = Path(__file__).parent / "tuned" / f"sm{major}x.json"
    return json.loads(path.read_text(encoding="utf-8"))["tiles"] if path.exists() else []


@cache
def tile(kernel: str, tokens: int, block: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """The first row of the table that fits, else the default."""
    if device.type != "cuda":
        some = {"reduce": _INTERPRETED._replace(columns=64, depth=2), "down": _INTERPRETED._replace(run=0, halves=True)}
        return some.get(kernel, _INTERPRETED)
    for row in _table(device):
        fits = row["tokens"][0] <= tokens <= row["tokens"][1] and row["block"][0] <= block <= row["block"][1]
        if fits and row["kernel"] == kernel and row["bytes"] == dtype.itemsize:
            return Tile(**row["tile"])
    return _MEMORY_BOUND.get(kernel, _DEFAULT)


def rows(device: torch.device) -> int:
    """The slots of a block, or the tokens with a shared pattern, in a tile."""
    return 128 if device.type == "cuda" else 16


def least_for_shared_pattern(device: torch.device) -> tuple[int, int]:
    """The number of tokens, and of units in a block, below which grouping by pattern costs more than it saves."""
    return (8192, 64) if device.type == "cuda" else (32, 16)


def uses_atomics(
    tokens: int, blocks: int, block: int, shared_pattern: bool, dtype: torch.dtype, device: torch.device
) -> bool:
    """Whether the down projection adds to the outputs by atomics. In 2 bytes that is faster than partial outputs. But
    every addition rounds, so there must not be too many, and the order of the additions is not fixed."""
    # Where more blocks are open than this, the shared-pattern kernels are faster.
    most = blocks * block / (block + ROW_COST) if shared_pattern else blocks
    if dtype.itemsize != 2 or most > MOST_ATOMIC_BLOCKS or torch.are_deterministic_algorithms_enabled():
        return False
    if device.type != "cuda":
        return dtype is torch.float16  # the only dtype that the interpreter can add atomically
    return tokens >= 1024 and block >= 64 and torch.cuda.get_device_capability(device)[0] >= 9


@cache
def most_bytes(device: torch.device) -> int:
    """How much memory the partial outputs may take."""
    return torch.cuda.get_device_properties(device).total_memory // 16 if device.type == "cuda" else 2**16


@cache
def programs(device: torch.device, per_processor: int) -> int:
    """How many programs share the work."""
    if device.type != "cuda":
        return 3
    return per_processor * torch.cuda.get_device_properties(device).multi_processor_count


@cache
def dependent_launch(device: torch.device) -> dict[str, bool]:
    """Programmatic dependent launch: from Hopper on, a kernel starts, and then waits, before the previous one ends."""
    early = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"DEPENDENT": True, "launch_pdl": True} if early else {"DEPENDENT": False}


def precision() -> str:
    """Of float32 products: three tf32 products, as accurate as float32, or one where torch allows tf32 for its own."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
