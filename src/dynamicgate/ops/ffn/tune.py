"""Sizes of tiles: a table measured on Hopper, and defaults that any CUDA GPU can run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

PARTIAL = 140  # a pair's row of output costs as much as so many hidden units of it: see README.md
MOST_ADDED = 64  # blocks of a token, each rounded to 2 bytes: with all of them open the error is still below 1 %


class Tile(NamedTuple):
    """How one kernel is cut up."""

    rows: int
    columns: int
    depth: int
    warps: int = 8
    stages: int = 3
    programs: int = 1  # for each multiprocessor
    tma: bool = False  # let the copy engine fetch what it can
    registers: int | None = None  # at most, for each thread: fewer let more programs run side by side
    run: int = 32  # steps of `depth` in one loop, over as many tiles of columns as that takes; 0: all of a program
    halves: bool = False  # store a tile in two halves, so that there is memory for one more stage


_SMALL = Tile(16, 32, 16, stages=1, tma=True)  # for the interpreter, which pays for every row
_ANY = Tile(128, 64, 32, warps=4, stages=3, programs=2)
_MEMORY_BOUND = {
    "reduce": Tile(1, 1024, 4, warps=4, programs=16),
    "elementwise": Tile(128, 64, 1, warps=4, programs=8),
    "rowwise": Tile(1, 512, 8, warps=4),
}


@cache
def _table(device: torch.device) -> list[dict[str, Any]]:
    """The rows measured for this kind of GPU; none where nobody has."""
    major, _ = torch.cuda.get_device_capability(device)
    path = Path(__file__).parent / "tuned" / f"sm{major}x.json"
    return json.loads(path.read_text(encoding="utf-8"))["tiles"] if path.exists() else []


@cache
def tile(kernel: str, tokens: int, block: int, dtype: torch.dtype, device: torch.device) -> Tile:
    """The first row of the table that fits, else the default."""
    if device.type != "cuda":
        some = {"reduce": _SMALL._replace(columns=64), "down": _SMALL._replace(run=0, halves=True)}
        return some.get(kernel, _SMALL)
    for row in _table(device):
        fits = row["tokens"][0] <= tokens <= row["tokens"][1] and row["block"][0] <= block <= row["block"][1]
        if fits and row["kernel"] == kernel and row["bytes"] == dtype.itemsize:
            return Tile(**row["tile"])
    return _MEMORY_BOUND.get(kernel, _ANY)


def rows(device: torch.device) -> int:
    """Pairs of a block, or like tokens, in a tile."""
    return 128 if device.type == "cuda" else 16


def like_least(device: torch.device) -> tuple[int, int]:
    """Tokens below which looking for like ones costs more than it gives; and units of a block below which too."""
    return (8192, 64) if device.type == "cuda" else (32, 16)


def adds(tokens: int, blocks: int, block: int, share: bool, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether pairs are added to the outputs where they lie. Two bytes at a time that is faster than a row for each
    pair; every addition rounds, so there must not be too many; and the order of additions is not always the same."""
    most = blocks * block / (block + PARTIAL) if share else blocks  # where more are open, tiles of like tokens win
    if dtype.itemsize != 2 or most > MOST_ADDED or torch.are_deterministic_algorithms_enabled():
        return False
    if device.type != "cuda":
        return dtype is torch.float16  # all that the interpreter can add
    return tokens >= 1024 and block >= 64 and torch.cuda.get_device_capability(device)[0] >= 9


@cache
def most_bytes(device: torch.device) -> int:
    """How much the rows of pairs may take."""
    return torch.cuda.get_device_properties(device).total_memory // 16 if device.type == "cuda" else 2**16


@cache
def programs(device: torch.device, per_processor: int) -> int:
    """How many programs share the work."""
    if device.type != "cuda":
        return 3
    return per_processor * torch.cuda.get_device_properties(device).multi_processor_count


@cache
def chained(device: torch.device) -> dict[str, bool]:
    """How a launch follows another: from Hopper on it starts, and waits, before the one ahead of it has ended."""
    early = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] >= 9
    return {"AFTER": True, "launch_pdl": True} if early else {"AFTER": False}


def precision() -> str:
    """Of float32 products: three products of tf32, as good as float32; one where torch allows that for its own."""
    return "tf32" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "tf32x3"
