"""Tokens that run together read every block that one of them opens: how many that are, and a penalty on it.

A few sequences that decode together pay for the bytes of the union of their open blocks, and so do neighbours in a
prompt whose tiles share weights. Shapes in names: M groups, n rows of a group, G blocks.
"""

from __future__ import annotations

from torch import Tensor

from dynamicgate.distributed import RowMeans
from dynamicgate.gating.gate import Decision


def neighbours(rows: Tensor, together: int) -> Tensor:
    """[..., T, G] as groups [M, n, G] of rows that follow each other; rows that are left over are dropped."""
    n = min(together, rows.shape[-2])
    whole = rows.shape[-2] // n
    return rows[..., : whole * n, :].unflatten(-2, (whole, n)).flatten(0, -3)


def same_place(rows: Tensor, together: int) -> Tensor:
    """[..., T, G] as groups [M, n, G] of rows at the same place of different sequences."""
    sequences = rows.flatten(0, -3)
    n = min(together, len(sequences))
    whole = len(sequences) // n
    return sequences[: whole * n].unflatten(0, (whole, n)).transpose(1, 2).flatten(0, 1)


def union(groups_MnG: Tensor) -> Tensor:
    """Which blocks are open for any row of a group, [M, G], as 0 and 1."""
    return (groups_MnG != 0).any(1).to(groups_MnG.dtype)


def read_by(groups_MnG: Tensor) -> Tensor:
    """The fraction of the blocks that are open for any row of a group, the mean over groups."""
    return union(groups_MnG).float().mean()


def locality(used: Decision, together: int, means: RowMeans) -> Tensor:
    """The fraction of the blocks that `together` rows read: of neighbours, and of different sequences, the mean of both
    where there are several sequences.

    Its value is that of hard decisions, and its gradient that of p where p decides: a row that opens a block which no
    other of its group opens is pushed to close it, and one that could join others is not.
    """
    ways = [neighbours] if used.open.ndim < 3 or used.open.flatten(0, -3).shape[0] < 2 else [neighbours, same_place]
    terms = []
    for grouped in ways:
        open_MnG, p_MnG = grouped(used.open.detach(), together), grouped(used.p, together)
        others_MnG = open_MnG.sum(1, keepdim=True) - open_MnG
        alone_MnG = (others_MnG == 0).to(p_MnG.dtype)
        value = means.mean(union(open_MnG))
        moving = p_MnG.shape[1] * means.local(alone_MnG * p_MnG)
        terms.append(value.detach() + (moving - moving.detach()))
    return sum(terms[1:], terms[0]) / len(terms)
