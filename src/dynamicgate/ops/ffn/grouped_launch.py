"""What every launch of the kernels for many tokens needs: sizes, descriptors, and how programs share the work."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from dynamicgate.ops.ffn import index as indexing
from dynamicgate.ops.ffn import tune
from dynamicgate.ops.ffn.tune import Tile

_OF_ONE_BLOCK = ("up", "up_value", "like_up", "like_up_value", "hidden_gradient")  # their columns are its units


class Job(NamedTuple):
    """What all kernels of one call agree on."""

    tokens: int
    units: int  # hidden units in all
    block: int
    blocks: int
    rows: int  # of a tile
    share: bool  # whether like tokens are looked for
    adds: bool  # whether pairs are added to the outputs in any order, instead of through a row for each
    dtype: torch.dtype
    device: torch.device

    @property
    def pairs(self) -> int:
        """Places for pairs."""
        return indexing.pairs(self.tokens, self.blocks, self.rows)

    @property
    def even(self) -> bool:
        """Whether no block is shorter than the others."""
        return self.units % self.block == 0

    def tile(self, kernel: str) -> Tile:
        """Sizes for one kernel."""
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
        """A fixed number of programs, whatever is open."""
        return (tune.programs(self.device, tile.programs),)

    def sizes(self, tile: Tile, even: bool) -> dict[str, Any]:
        """The constants that all products share."""
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


def job(x: Tensor, factor: Tensor, block: int, units: int, *, share: bool, in_order: bool) -> Job:
    """For these tensors. share: like tokens may be looked for, if there are enough. in_order: sums must be in order."""
    T, G = factor.shape
    rows = tune.rows(x.device)
    if indexing.pairs(T, G, rows) >= 2**31:
        raise ValueError(f"expected fewer than 2**31 pairs of tokens and blocks, received {T} * {G}")
    tokens, least = tune.like_least(x.device)
    share = share and tokens <= T and units % block == 0 and block >= least and block == power_of_2(block)
    adds = not in_order and tune.adds(T, G, block, share, x.dtype, x.device)
    return Job(T, units, block, G, rows, share, adds, x.dtype, x.device)


def fetchable(tile: Tile, *tensors: Tensor | None) -> bool:
    """Whether the copy engine can fetch tiles of these matrices."""
    return tile.tma and all(
        t is None or (t.shape[1] * t.itemsize % 16 == 0 and t.data_ptr() % 16 == 0) for t in tensors
    )


def described(t: Tensor, rows: int, columns: int, tma: bool) -> Any:
    """A matrix of which the copy engine fetches tiles of this size, or the matrix."""
    return TensorDescriptor.from_tensor(t, [rows, columns]) if tma else t


def either(given: Tensor | None, other: Tensor) -> Tensor:
    """An argument that a kernel does not look at still needs a tensor."""
    return other if given is None else given


def power_of_2(n: int) -> int:
    """The next one."""
    return 1 << (n - 1).bit_length()
