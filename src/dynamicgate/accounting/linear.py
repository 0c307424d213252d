"""What a linear layer executes, given which of its inputs and outputs are open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from dynamicgate.accounting.sides import Side, as_count
from dynamicgate.linears import in_features, out_features
from dynamicgate.masks import connections, present


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerMacs:
    """One linear layer of the base model and the gates on its two sides."""

    name: str
    linear: nn.Module
    rows: float
    """Rows this layer processes for one sample: 1 in an MLP, the number of tokens in a sequence model."""
    read: Side
    """The units it reads."""
    written: Side
    """The units it writes."""
    _block_counts: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def dense(self) -> int:
        """MACs of one row with everything open and every connection present."""
        return in_features(self.linear) * out_features(self.linear)

    @property
    def density(self) -> float:
        """Fraction of the connections that exist."""
        mask = connections(self.linear)
        return 1.0 if mask is None else float(mask.float().mean())

    @property
    def present(self) -> int:
        """MACs of one row with every gate open: the connections that exist."""
        return present(self.linear)

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """MACs of each row under `decisions` (site name -> [rows, blocks]); a scalar where no gate acts."""
        mask = connections(self.linear)
        if mask is None:
            return as_count(self.read.open_units(decisions) * self.written.open_units(decisions))
        counts_OI = self.between_groups(mask)
        g_in, g_out = self.read.open(decisions), self.written.open(decisions)
        given = next((g for g in (g_in, g_out) if g is not None), counts_OI)
        g_in = given.new_ones(1) if g_in is None else g_in
        g_out = given.new_ones(1) if g_out is None else g_out
        return ((g_out @ counts_OI.to(g_out)) * g_in).sum(-1)

    def between_groups(self, mask: Tensor) -> Tensor:
        """The connections between each group of outputs and each group of inputs. Counted again only when the mask has
        changed: every training step needs it, and masks change rarely."""
        cached = self._block_counts
        if cached.get("mask") is not mask or cached["version"] != mask._version:
            counts = self.read.sum_groups(self.written.sum_groups(mask.float(), dim=0), dim=1)
            cached.update(mask=mask, version=mask._version, counts=counts)
        return cached["counts"]
