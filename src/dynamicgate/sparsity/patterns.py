"""Mask patterns: which entries of a weight are pruned and grown together, and how tiles are exchanged.

A mask is made of tiles: single entries, vectors of adjacent outputs, or blocks. Tiles are exchanged only for tiles of
the same size (the smaller tiles at the edges form groups of their own), so that the number of connections stays
constant to the entry. Shapes in names: O outputs, I inputs, P and Q rows and columns of tiles, G groups of N tiles.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.masks import UNSTRUCTURED

FAN_IN = "fan-in"


@dataclass(frozen=True)
class Pattern:
    """Tiles of `rows` adjacent outputs x `columns` adjacent inputs; with `per_row`, every row keeps its own count."""

    name: str
    rows: int = 1
    columns: int = 1
    per_row: bool = False

    def tile_sums(self, values_OI: Tensor) -> Tensor:
        """The sum over each tile."""
        if self.rows == self.columns == 1:
            return values_OI
        outputs, inputs = values_OI.shape
        padded = F.pad(values_OI, (0, -inputs % self.columns, 0, -outputs % self.rows))
        return padded.unflatten(1, (-1, self.columns)).unflatten(0, (-1, self.rows)).sum((1, 3))

    def active_tiles(self, mask_OI: Tensor) -> Tensor:
        """Which tiles a mask of this pattern contains: the first entry stands for the whole tile."""
        return mask_OI[:: self.rows, :: self.columns]

    def expand(self, tiles_PQ: Tensor, shape: torch.Size) -> Tensor:
        """The mask of all entries from the mask of tiles: the inverse of `active_tiles`."""
        if self.rows == self.columns == 1:
            return tiles_PQ
        expanded = tiles_PQ.repeat_interleave(self.rows, 0).repeat_interleave(self.columns, 1)
        return expanded[: shape[0], : shape[1]]

    def groups(self, shape: torch.Size) -> Iterator[tuple[slice, slice]]:
        """The regions of the matrix of tiles in which all tiles have the same size."""
        full_P, full_Q = shape[0] // self.rows, shape[1] // self.columns
        for part_P in (slice(0, full_P), slice(full_P, math.ceil(shape[0] / self.rows))):
            for part_Q in (slice(0, full_Q), slice(full_Q, math.ceil(shape[1] / self.columns))):
                if part_P.stop > part_P.start and part_Q.stop > part_Q.start:
                    yield part_P, part_Q

    def competing(self, region_PQ: Tensor) -> Tensor:
        """A region as competing groups, one per row of the result: tiles are exchanged within a row only."""
        return region_PQ if self.per_row else region_PQ.reshape(1, -1)

    def random(self, shape: torch.Size, density: float, generator: torch.Generator) -> Tensor:
        """A random mask of this pattern, as close to `density` as whole tiles allow and never empty."""
        tiles_PQ = torch.zeros(math.ceil(shape[0] / self.rows), math.ceil(shape[1] / self.columns), dtype=torch.bool)
        for part in self.groups(shape):
            scores = self.competing(torch.rand(tiles_PQ[part].shape, generator=generator))
            first = self.per_row or not bool(tiles_PQ.any())
            count = max(int(first), round(density * scores.shape[1]))
            tiles_PQ[part] = largest(scores, count).reshape(tiles_PQ[part].shape)
        return self.expand(tiles_PQ, shape)


def parse_pattern(name: str) -> Pattern:
    """ "unstructured", "fan-in" (every output has the same number of inputs), or tiles as "16x1" or "32x32"."""
    if name == UNSTRUCTURED:
        return Pattern(name)
    if name == FAN_IN:
        return Pattern(name, per_row=True)
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", str(name))
    if not found:
        raise ValueError(
            f"a pattern is '{UNSTRUCTURED}', '{FAN_IN}' or a tile of outputs x inputs like '16x1' or '32x32', "
            f"received {name!r}"
        )
    return Pattern(name, int(found[1]), int(found[2]))


def largest(scores_GN: Tensor, k: int) -> Tensor:
    """A mask of the k largest of each row. Ties go to the lowest index, so that equal scores give equal masks on every
    device (topk returns the same values everywhere, but not the same indices among equals)."""
    none = torch.zeros_like(scores_GN, dtype=torch.bool)
    if k <= 0:
        return none
    if k >= scores_GN.shape[1]:
        return ~none
    values, index = scores_GN.topk(k, dim=1, sorted=False)
    last = values.min(dim=1, keepdim=True).values
    tied = scores_GN == last
    if torch.equal(tied.count_nonzero(1), (values == last).count_nonzero(1)):
        return none.scatter_(1, index, True)  # topk took all ties: there was nothing to choose
    above = scores_GN > last
    return above | (tied & (tied.cumsum(1) <= k - above.sum(1, keepdim=True)))


def prune_and_regrow(
    pattern: Pattern, mask_OI: Tensor, keep_OI: Tensor, grow_OI: Tensor, fraction: float, density: float | None = None
) -> Tensor:
    """The mask after one update: a `fraction` of its tiles, those with the lowest `keep` scores, is replaced by the
    missing tiles with the highest `grow` scores. With a `density`, no more than this fraction of all tiles is left."""
    active_PQ = pattern.active_tiles(mask_OI)
    keep_PQ, grow_PQ = pattern.tile_sums(keep_OI), pattern.tile_sums(grow_OI)
    updated_PQ = active_PQ.clone()
    for part in pattern.groups(mask_OI.shape):
        active = pattern.competing(active_PQ[part])
        count = int(active[0].count_nonzero())
        left = count if density is None else min(count, max(1, round(density * active.shape[1])))
        k = min(round(fraction * left), active.shape[1] - count)
        index = active.nonzero()[:, 1].reshape(len(active), count)  # every competing group has the same count
        weakest = largest(-pattern.competing(keep_PQ[part]).gather(1, index), k + count - left)
        pruned = index[weakest].reshape(len(active), -1)
        grown = largest(pattern.competing(grow_PQ[part]).scatter(1, index, -math.inf), k)
        updated_PQ[part] = (active.scatter(1, pruned, False) | grown).reshape(updated_PQ[part].shape)
    return pattern.expand(updated_PQ, mask_OI.shape)
