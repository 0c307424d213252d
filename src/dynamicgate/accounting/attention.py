"""What the heads of an attention layer compute besides its linear layers: scores of queries and keys, mixing of values.

Both are in proportion to the open heads of the token that asks; keys and values themselves are always computed. Each
query is counted with every key of the example that it could look at, those that a causal mask hides included, as they
are for the dense model: torch computes them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from dynamicgate.accounting.sides import Side
from dynamicgate.gating.sites import Site


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionMacs:
    """Scores and mixing of one attention layer with gates on its heads; the fields are those of `LayerMacs`."""

    name: str
    rows: float
    """Tokens that ask, for one sample."""
    per_row: float
    """MACs for one of them with all heads open."""
    read: Side
    written: Side
    """The heads."""
    density: float = 1.0

    @property
    def dense(self) -> float:
        """MACs of one row with everything open."""
        return self.per_row

    @property
    def present(self) -> float:
        """The same: there are no connections that could be missing."""
        return self.per_row

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """MACs of each row under `decisions`."""
        return self.written.open_units(decisions) * (self.per_row / self.written.units)


def module_around(site: Site) -> str:
    """The name of the attention layer of heads: the smallest module that holds queries and output projection."""
    paths = [name.split(".") for name in (*site.producers, site.consumer)]
    shared = takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared)
