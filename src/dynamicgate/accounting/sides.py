"""The units on one side of a layer, in groups that open together: blocks of a gate, stages, or all of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from dynamicgate.gating.channels import per_value
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.stages import STAGES, StageGate, stack_names
from dynamicgate.gating.units_in_stages import stage_of_blocks


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """Units and what may close them. A block inside stages is open where both its gate and its stage are.

    A layer may write more than the units of its gate. If it writes two values for each (gate and up in one layer), both
    are open with the unit. If it writes keys and values beside the queries of heads, these are always computed; where
    they lie is not known, so that with a mask on that layer its queries are counted in full as well. A Linear may read
    several values of each channel of a convolution, one channel after the other.
    """

    units: int
    site: str | None = None
    gate: Gate | None = None
    stage_of_units: Tensor | None = None
    stage_of_blocks: Tensor | None = None

    @property
    def closes(self) -> bool:
        """Whether anything can close these units."""
        return self.gate is not None or self.stage_of_units is not None

    @property
    def always_computed(self) -> int:
        """How many values no gate closes, although it closes others: keys and values."""
        return self.units - self.gate.site.width if self.gate is not None and self.gate.site.is_heads else 0

    @cached_property
    def group_of_units(self) -> Tensor:
        """The group of each unit."""
        if self.gate is not None and self.gate.site.channels:
            return per_value(torch.arange(self.gate.site.width), self.units) // self.gate.block
        if self.gate is not None:
            return torch.arange(self.units) % self.gate.site.width // self.gate.block
        if self.stage_of_units is not None:
            return self.stage_of_units
        return torch.zeros(self.units, dtype=torch.long)

    @cached_property
    def sizes(self) -> Tensor:
        """Units in each group."""
        return torch.bincount(self.group_of_units).float()

    def open(self, decisions: Mapping[str, Tensor]) -> Tensor | None:
        """Which groups are open for each row, [rows, groups]; None where nothing can close, or nobody knows which."""
        return None if self.always_computed else self._decided(decisions)

    def _decided(self, decisions: Mapping[str, Tensor]) -> Tensor | None:
        if self.gate is None or self.site is None:
            return None if self.stage_of_units is None else decisions[STAGES]
        g_BG = decisions[self.site]
        if self.stage_of_blocks is None:
            return g_BG
        return g_BG * decisions[STAGES][..., self.stage_of_blocks.to(g_BG.device)]

    @cached_property
    def _units_of_blocks(self) -> float | None:
        """Units that a block closes here, where all blocks are alike."""
        if self.gate is None or self.gate.site.width % self.gate.block:
            return None
        return float((self.units - self.always_computed) // self.gate.site.width * self.gate.block)

    def open_units(self, decisions: Mapping[str, Tensor]) -> Tensor | float:
        """How many units are open for each row; a number where nothing can close."""
        g_BG = self._decided(decisions)
        if g_BG is None:
            return float(self.units)
        each, always = self._units_of_blocks, self.always_computed
        if each is not None:
            open_B = g_BG.sum(-1) if each == 1.0 else g_BG.sum(-1) * each
        elif always and self.gate is not None:
            open_B = g_BG @ self.gate.block_sizes.to(g_BG)
        else:
            open_B = g_BG @ self.sizes.to(g_BG)
        return open_B + always if always else open_B

    def open_fraction(self, rate: float) -> float:
        """The fraction of the units that is computed if gates are open at this rate."""
        return (rate * (self.units - self.always_computed) + self.always_computed) / self.units

    def per_unit(self, decisions: Mapping[str, Tensor]) -> Tensor | None:
        """Whether each unit is open, [rows, units]; None where `open` is."""
        g_BG = self.open(decisions)
        return None if g_BG is None else g_BG[..., self.group_of_units.to(g_BG.device)]

    def sum_groups(self, counts: Tensor, dim: int) -> Tensor:
        """Counts of units along `dim` summed over each group; over all units where `open` is None."""
        if not self.closes or self.always_computed:
            return counts.sum(dim, keepdim=True)
        shape = list(counts.shape)
        shape[dim] = len(self.sizes)
        return counts.new_zeros(shape).index_add_(dim, self.group_of_units.to(counts.device), counts)


class StageSides:
    """The stages of the units that each layer of a stack reads and writes."""

    def __init__(self, model: nn.Module, stages: StageGate | None) -> None:
        """For a model and its stage gate, if it has one."""
        self.gate = stages
        self.names = [] if stages is None else stack_names(model, stages)

    def around(self, layer: str, *, read: bool) -> int | None:
        """The position of the site that a layer reads or writes; None outside the stack."""
        if self.gate is None or layer not in self.names:
            return None
        position = self.names.index(layer) - int(read)
        return position if 0 <= position < len(self.gate.sites) else None

    def side(self, layer: str, units: int, site: str | None, gate: Gate | None, *, read: bool) -> Side:
        """The units that a layer reads or writes, with the gate on them."""
        position = self.around(layer, read=read)
        if position is None or self.gate is None:
            return Side(units=units, site=site, gate=gate)
        of_blocks = None if gate is None else stage_of_blocks(self.gate, position, gate)
        of_units = self.gate.stage_of_units(position)
        return Side(units=units, site=site, gate=gate, stage_of_units=of_units, stage_of_blocks=of_blocks)


def as_count(macs: Tensor | float) -> Tensor:
    """A count as a tensor; where nothing can close, in float64: float32 cannot hold the MACs of a large model."""
    return macs if isinstance(macs, Tensor) else torch.tensor(macs, dtype=torch.float64)
