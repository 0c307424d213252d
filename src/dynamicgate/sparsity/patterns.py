"""The pattern of a mask: which entries of a weight come and go together, and among which they may be exchanged.

A mask is made of cells: single entries, vectors of adjacent outputs, or blocks. Cells are exchanged only within a group
of equal size (the ragged cells at the edges are groups of their own), so that the number of connections is constant to
the entry. Shapes in names: O outputs, I inputs, P and Q rows and columns of cells.
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
    """Cells of `rows` adjacent outputs x `columns` adjacent inputs; with `per_row`, every row keeps its number."""

    name: str
    rows: int = 1
    columns: int = 1
    per_row: bool = False

    def cells(self, values_OI: Tensor) -> Tensor:
        """The sum over each cell."""
        if self.rows == self.columns == 1:
            return values_OI
        outputs, inputs = values_OI.shape
        padded = F.pad(values_OI, (0, -inputs % self.columns, 0, -outputs % self.rows))
        return padded.unflatten(1, (-1, self.columns)).unflatten(0, (-1, self.rows)).sum((1, 3))

    def holds(self, mask_OI: Tensor) -> Tensor:
        """Which cells a mask of this pattern holds: one entry stands for all of its cell."""
        return mask_OI[:: self.rows, :: self.columns]

    def entries(self, cells_PQ: Tensor, shape: torch.Size) -> Tensor:
        """Every entry of a cell as its cell: the inverse of `cells` for masks."""
        if self.rows == self.columns == 1:
            return cells_PQ
        spread = cells_PQ.repeat_interleave(self.rows, 0).repeat_interleave(self.columns, 1)
        return spread[: shape[0], : shape[1]]

    def groups(self, shape: torch.Size) -> Iterator[tuple[slice, slice]]:
        """Where in the matrix of cells the cells of one size are."""
        full_P, full_Q = shape[0] // self.rows, shape[1] // self.columns
        for part_P in (slice(0, full_P), slice(full_P, math.ceil(shape[0] / self.rows))):
            for part_Q in (slice(0, full_Q), slice(full_Q, math.ceil(shape[1] / self.columns))):
                if part_P.stop > part_P.start and part_Q.stop > part_Q.start:
                    yield part_P, part_Q

    def rivals(self, group_PQ: Tensor) -> Tensor:
        """A group as rows of cells that compete with each other."""
        return group_PQ if self.per_row else group_PQ.reshape(1, -1)

    def random(self, shape: torch.Size, density: float, generator: torch.Generator) -> Tensor:
        """A random mask of this pattern, as close to `density` as whole cells allow and never empty."""
        cells_PQ = torch.zeros(math.ceil(shape[0] / self.rows), math.ceil(shape[1] / self.columns), dtype=torch.bool)
        for part in self.groups(shape):
            scores = self.rivals(torch.rand(cells_PQ[part].shape, generator=generator))
            first = self.per_row or not bool(cells_PQ.any())
            keep = max(int(first), round(density * scores.shape[1]))
            cells_PQ[part] = largest(scores, keep).reshape(cells_PQ[part].shape)
        return self.entries(cells_PQ, shape)


def parse_pattern(name: str) -> Pattern:
    """ "unstructured", "fan-in" (every output has the same number of inputs), or cells as "16x1" or "32x32"."""
    if name == UNSTRUCTURED:
        return Pattern(name)
    if name == FAN_IN:
        return Pattern(name, per_row=True)
    found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", name)
    if not found:
        raise ValueError(
            f"a pattern is '{UNSTRUCTURED}', '{FAN_IN}' or a cell of outputs x inputs like '16x1' or '32x32', "
            f"received {name!r}"
        )
    return Pattern(name, int(found[1]), int(found[2]))


def largest(scores_GN: Tensor, k: int) -> Tensor:
    """A mask of the k largest of each row. Ties go to the lowest index, so that the mask is a function of the scores on
    every device (topk's values are; the indices it picks among equals are not)."""
    none = torch.zeros_like(scores_GN, dtype=torch.bool)
    if k <= 0:
        return none
    if k >= scores_GN.shape[1]:
        return ~none
    values, index = scores_GN.topk(k, dim=1, sorted=False)
    last = values.min(dim=1, keepdim=True).values
    level = scores_GN == last
    if torch.equal(level.count_nonzero(1), (values == last).count_nonzero(1)):
        return none.scatter_(1, index, True)  # no equals were left out: there was nothing to choose
    above = scores_GN > last
    return above | (level & (level.cumsum(1) <= k - above.sum(1, keepdim=True)))


def prune_and_regrow(
    pattern: Pattern, mask_OI: Tensor, keep_OI: Tensor, grow_OI: Tensor, fraction: float, density: float | None = None
) -> Tensor:
    """The mask with a `fraction` of its cells, those least worth keeping, exchanged for absent ones most wanted; of all
    possible cells no more than a fraction of `density` is left."""
    was = pattern.holds(mask_OI)
    keep, grow = pattern.cells(keep_OI), pattern.cells(grow_OI)
    now = was.clone()
    for part in pattern.groups(mask_OI.shape):
        active = pattern.rivals(was[part])
        count = int(active[0].count_nonzero())
        left = count if density is None else min(count, max(1, round(density * active.shape[1])))
        k = min(round(fraction * left), active.shape[1] - count)
        kept = active.nonzero()[:, 1].reshape(len(active), count)  # every row of rivals has as many
        weakest = kept[largest(-pattern.rivals(keep[part]).gather(1, kept), k + count - left)].reshape(len(active), -1)
        wanted = largest(pattern.rivals(grow[part]).scatter(1, kept, -math.inf), k)
        now[part] = (active.scatter(1, weakest, False) | wanted).reshape(now[part].shape)
    return pattern.entries(now, mask_OI.shape)
