"""What all launches of the grouped kernels need: sizes, descriptors, and how programs share the work."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from dynamicgate.ops.ffn import index as indexing
from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.tune import Tile, power_of_2

# Kernels whose columns are the units of one block.
_OF_ONE_BLOCK = ("up", "up_value", "shared_pattern_up", "shared_pattern_up_value", "hidden_gradient")


class Job(NamedTuple):
    """What all kernels of one call have in common."""

    tokens: int
    units: int
    """Hidden units in total."""
    block: int
    blocks: int
    rows: int
    """Of a tile."""
    shared_pattern: bool
    """Whether tokens are also grouped by their gate pattern, for the kernels of shared_pattern.py."""
    atomic: bool
    """Whether the down projection adds to the outputs in any order, by atomics, instead of through partial outputs."""
    dtype: torch.dtype
    device: torch.device

    @property
    def slots(self) -> int:
        """The number of slots for assignments."""
        return indexing.slot_count(self.tokens, self.blocks, self.rows)

    @property
    def even(self) -> bool:
        """Whether all blocks have the same length."""
        return self.units % self.block == 0

    def tile(self, kernel: str) -> Tile:
        """The tile of one kernel."""
        found = tune.tile(kernel, self.tokens, self.block, self.dtype, self.device)
        most = max(32 if self.device.type == "cuda" else 16, power_of_2(self.block))
        if kernel == "up_gradient":
            return found._replace(rows=min(found.rows, most))
        if kernel == "down_gradient":
            return found._replace(columns=min(found.columns, most))
        if kernel in _OF_ONE_BLOCK:
            found = found._replace(columns=min(found.columns, most))
        return found._replace(rows=self.rows)

    def grid(self, tile: Tile) -> tuple[int]:
        """A fixed number of programs, however many blocks are open."""
        return (tune.programs(self.device, tile.programs),)

    def sizes(self, tile: Tile, even: bool) -> dict[str, Any]:
        """The constants that all kernels with products have."""
        return {
            "BLOCK": self.block,
            "ROWS": tile.rows,
            "COLUMNS": tile.columns,
            "DEPTH": tile.depth,
            "STAGES": tile.stages,
            "EVEN": even,
            "PRECISION": tune.precision(),
            "num_warps": tile.warps,
            "maxnreg": tile.registers,
        }


def make_job(x: Tensor, factor: Tensor, block: int, units: int, *, shared_pattern: bool, deterministic: bool) -> Job:
    """shared_pattern: tokens may be grouped by pattern, if there are enough. deterministic: sums have a fixed order."""
    T, G = factor.shape
    rows = tune.rows(x.device)
    if indexing.slot_count(T, G, rows) >= 2**31:
        raise ValueError(f"expected fewer than 2**31 combinations of tokens and blocks, received {T} * {G}")
    tokens, least = tune.least_for_shared_pattern(x.device)
    possible = units % block == 0 and block >= least and block == power_of_2(block)
    shared_pattern = shared_pattern and tokens <= T and possible
    atomic = not deterministic and tune.uses_atomics(T, G, block, shared_pattern, x.dtype, x.device)
    return Job(T, units, block, G, rows, shared_pattern, atomic, x.dtype, x.device)


def tma_usable(tile: Tile, *tensors: Tensor | None) -> bool:
    """Whether the copy engine (TMA) can load tiles of these matrices."""
    return tile.tma and all(
        t is None or (t.shape[1] * t.itemsize % 16 == 0 and t.data_ptr() % 16 == 0) for t in tensors
    )


def descriptor(t: Tensor, rows: int, columns: int, tma: bool) -> Any:
    """The descriptor by which the copy engine loads tiles of this size, or without TMA the matrix itself."""
    return TensorDescriptor.from_tensor(t, [rows, columns]) if tma else t


def or_dummy(given: Tensor | None, dummy: Tensor) -> Tensor:
    """A kernel needs a tensor even for an argument that it does not read."""
    return dummy if given is None else given
