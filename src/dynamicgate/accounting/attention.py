"""What the heads of an attention layer compute besides its linear layers: scores of queries and keys, mixing of values.

Both are in proportion to the open heads of the token that asks; keys and values themselves are always computed. In a
Hugging Face model each query is counted with the keys that it looks at, for the dense model too: none that are padding,
or that a causal mask or a window hides. In any other model it is counted with every key, as torch computes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from dynamicgate.accounting.sides import Side, as_count
from dynamicgate.gating.sites import Site


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionMacs:
    """Scores and mixing of one attention layer with gates on its heads; the fields are those of `LayerMacs`."""

    name: str
    rows: float
    """Tokens that ask, for one sample."""
    per_row: float
    """MACs for one of them with all heads open; the mean, where they look at different numbers of keys."""
    read: Side
    written: Side
    """The heads."""
    density: float = 1.0
    keys: Tensor | None = None
    """How many keys each token looks at; None: all look at equally many."""

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
        macs = as_count(self.written.open_units(decisions) * (self.per_row / self.written.units))
        if self.keys is None or macs.numel() != self.keys.numel():  # rates for any token, not decisions of these
            return macs
        keys = self.keys.to(macs).view_as(macs)
        return macs * (keys / keys.mean().clamp(min=1e-9))


def module_around(site: Site) -> str:
    """The name of the attention layer of heads: the smallest module that holds queries and output projection."""
    paths = [name.split(".") for name in (*site.producers, site.consumer)]
    shared = takewhile(lambda parts: len({*parts}) == 1, zip(*paths, strict=False))
    return ".".join(parts[0] for parts in shared)
