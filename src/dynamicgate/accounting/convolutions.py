"""What a convolution executes for one image, given which channels are open on its two sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynamicgate.accounting.sides import Side, as_count
from dynamicgate.gating.recording import named_gates
from dynamicgate.linears import outer_name
from dynamicgate.masks import connections, present


@dataclass(frozen=True, eq=False, kw_only=True)
class ConvMacs:
    """One Conv2d and the gates on its channels; the fields are those of `LayerMacs`, and a row is an image."""

    name: str
    conv: nn.Conv2d
    rows: float
    """Images that it processes for one sample: 1, unless a sample holds several."""
    positions: float
    """Positions of its output in one image, which stride, padding and dilation have decided. Every weight is counted
    once for each: padding is multiplied too."""
    read: Side
    """The channels it reads."""
    written: Side
    """The channels it writes."""

    @property
    def dense(self) -> float:
        """MACs of one image with all channels open."""
        return self.positions * self.conv.weight.numel()

    @property
    def present(self) -> float:
        """The same without weights that `torch.nn.utils.prune` has masked."""
        return self.positions * present(self.conv)

    @property
    def density(self) -> float:
        """Fraction of the weights that exist."""
        return present(self.conv) / self.conv.weight.numel()

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """MACs of each image under `decisions` (site name -> [images, blocks]); a scalar where no gate acts."""
        if self.conv.groups == 1 and connections(self.conv) is None:
            pairs = as_count(self.read.open_units(decisions) * self.written.open_units(decisions))
            return pairs * (self.positions * self.conv.weight[0, 0].numel())
        weights_OI = self.read.sum_groups(self.written.sum_groups(self._weights_between(), dim=0), dim=1)
        g_in, g_out = self.read.open(decisions), self.written.open(decisions)
        given = next((g for g in (g_in, g_out) if g is not None), weights_OI)
        g_in = given.new_ones(1) if g_in is None else g_in
        g_out = given.new_ones(1) if g_out is None else g_out
        return ((g_out @ weights_OI.to(g_out)) * g_in).sum(-1) * self.positions

    def _weights_between(self) -> Tensor:
        """How many weights there are between each output channel and each input channel: none outside of its group."""
        conv = self.conv
        mask = connections(conv)
        each = torch.ones_like(conv.weight, dtype=torch.float32) if mask is None else mask.float()
        per_group = each.sum((-2, -1)).chunk(conv.groups)  # each [outputs, inputs] of a group
        return torch.block_diag(*per_group)


def gated_convs(model: nn.Module) -> dict[str, nn.Conv2d]:
    """The convolutions with a gate on the channels of at least one side, by their path in the model."""
    sites = [gate.site_at(name) for name, gate in named_gates(model).items()]
    names = {layer for site in sites if site.channels for layer in (*site.producers, site.consumer)}
    modules = model.named_modules()
    return {path: m for path, m in modules if isinstance(m, nn.Conv2d) and outer_name(path) in names}
