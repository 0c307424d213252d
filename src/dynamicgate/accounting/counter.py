"""The one MAC counter: what every Linear layer executes, given which blocks are open (sec 3.6, 3.8(3)).

A layer with gates at both ends executes, for one row, ``g_out^T C g_in`` multiply-accumulates, where C counts the
existing connections between a block of outputs and a block of inputs. Counts are made per row and summed: a product of
mean open rates is not the mean of the products. The same functions count hard decisions (0 or 1) exactly and
probabilities in expectation, so that a penalty can be a differentiable cost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Decision, Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.masks import connections, final_connections, present
from dynamicgate.modules import unwrap


@dataclass(frozen=True, eq=False)
class LayerMacs:
    """One Linear layer of the base model and the gates at its two ends."""

    name: str
    linear: nn.Linear
    in_gate: Gate | None
    out_gate: Gate | None
    rows: float = 1.0
    """Rows this layer processes for one sample: 1 in an MLP, the number of tokens in a sequence model."""
    _counted: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def dense(self) -> int:
        """MACs of one row with everything open and every connection present."""
        return self.linear.in_features * self.linear.out_features

    @property
    def density(self) -> float:
        """Share of the connections that exist."""
        mask = connections(self.linear)
        return 1.0 if mask is None else float(mask.float().mean())

    @property
    def present(self) -> int:
        """MACs of one row with every gate open: the connections that exist."""
        return present(self.linear)

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """MACs of each row under `decisions` (site name -> [rows, blocks]); a scalar where no gate has a say."""
        mask = connections(self.linear)
        if mask is None:
            inputs = _open_units(self.in_gate, decisions, self.linear.in_features)
            outputs = _open_units(self.out_gate, decisions, self.linear.out_features)
            return inputs * outputs
        pairs_OI = self._pairs(mask)
        g_in = decisions[self.in_gate.site.name] if self.in_gate else pairs_OI.new_ones(1)
        g_out = decisions[self.out_gate.site.name] if self.out_gate else pairs_OI.new_ones(1)
        return ((g_out @ pairs_OI) * g_in).sum(-1)

    def _pairs(self, mask: Tensor) -> Tensor:
        """Counted anew only when the mask has changed: a training step needs it, rewiring is rare."""
        seen = self._counted
        if seen.get("mask") is not mask or seen["version"] != mask._version:
            seen.update(mask=mask, version=mask._version, pairs=self._connections_between_blocks(mask))
        return seen["pairs"]

    def _connections_between_blocks(self, mask: Tensor) -> Tensor:
        counts = mask.float()
        if self.out_gate is None:
            counts = counts.sum(0, keepdim=True)
        else:
            counts = _sum_blocks(counts, self.out_gate.config.block, dim=0)
        if self.in_gate is None:
            return counts.sum(1, keepdim=True)
        return _sum_blocks(counts, self.in_gate.config.block, dim=1)


class MacCounter:
    """The layers, gates and fixed costs of a model, ready to be counted."""

    def __init__(
        self,
        model: nn.Module,
        rows: Mapping[str, float] | None = None,
        other: float = 0.0,
        *,
        readers_only: bool = False,
    ) -> None:
        """Without `rows` every Linear is taken to run once per row and nothing else to cost MACs: true of an MLP.
        `count_macs` finds both for any model by running it on an example; a layer that its example does
        not call (attention calls its projection by another way) is then part of `other`. `readers_only` counts as the
        published MNIST and Speech Commands code does: a closed unit saves its reader's work, never its writer's."""
        base = unwrap(model)
        gates = named_gates(base)
        reads = {gate.site.consumer: gate for gate in gates.values()}
        writers = [gate for gate in gates.values() if saves_producers(gate) and not readers_only]
        writes = {name: gate for gate in writers for name in gate.site.producers}
        inside_gates = {id(m) for gate in gates.values() for m in gate.modules()}
        self.gates = gates
        self.other = other
        self.layers = [
            LayerMacs(name, m, reads.get(name), writes.get(name), 1.0 if rows is None else rows[name])
            for name, m in base.named_modules()
            if isinstance(m, nn.Linear) and id(m) not in inside_gates and (rows is None or name in rows)
        ]
        by_name = {layer.name: layer for layer in self.layers}
        self._gate_rows = {name: by_name[gate.site.source].rows for name, gate in gates.items()}
        nets = [m for gate in gates.values() for m in gate.net.modules() if isinstance(m, nn.Linear)]
        self._linears = [*nets, *(layer.linear for layer in self.layers)]
        self._counted: dict[str, tuple[Any, float]] = {}

    @cached_property
    def dense(self) -> float:
        """MACs per sample of the base model, no gates, no masks."""
        return sum(layer.dense * layer.rows for layer in self.layers) + self.other

    @property
    def gate(self) -> float:
        """MACs per sample of all gate networks, counted in full: they run on every input."""
        return self._once(
            "gate", lambda: float(sum(gate.macs * self._gate_rows[name] for name, gate in self.gates.items()))
        )

    @property
    def all_open(self) -> float:
        """`relative` with every gate open: what the connections that exist now allow at most."""
        return self._once("all_open", lambda: self.relative_at(1.0))

    @property
    def final_relative(self) -> float:
        """`all_open` when the connections that a sparsifier is still to take have gone."""

        def count() -> float:
            going = sum((layer.present - final_connections(layer.linear)) * layer.rows for layer in self.layers)
            return self.all_open - going / self.dense

        return self._once("final_relative", count)

    def _once(self, name: str, count: Callable[[], float]) -> float:
        """Counted anew only when a mask has changed: every training step asks, and on a GPU an answer is a wait."""
        masks = [connections(linear) for linear in self._linears]
        now = [None if mask is None else (id(mask), mask._version) for mask in masks]
        if name not in self._counted or self._counted[name][0] != now:
            self._counted[name] = (now, count())
        return self._counted[name][1]

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """Mean MACs per sample under `decisions`, gate networks and everything else included."""
        total = torch.zeros(())
        for layer in self.layers:
            macs = layer.executed(decisions)
            total = (
                total + macs.sum() / max(1, macs.numel()) * layer.rows
            )  # no rows (a rank's empty share) cost nothing
        return total + self.gate + self.other

    def relative(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """`executed` as a share of `dense`: the headline number."""
        return self.executed(decisions) / self.dense

    def relative_at(self, open_rate: float) -> float:
        """What the model would cost if every gate were open for this share of inputs, independently."""
        rates = {
            name: torch.full((1, gate.blocks), open_rate, device=gate.tau.device) for name, gate in self.gates.items()
        }
        return float(self.relative(rates))


def saves_producers(gate: Gate) -> bool:
    """A gate that reads its own layer's output comes too late to skip the work that made it."""
    return gate.config.kind == "static" or gate.site.source != gate.site.consumer or gate.site.is_input


def deployed(counter: MacCounter, used: Mapping[str, Decision]) -> dict[str, Tensor]:
    """The decisions that count: hard gates as they are, a gate that is evaluated softly as open throughout."""
    return {
        name: torch.ones_like(used[name].open) if gate.config.evaluate == "soft" else used[name].open
        for name, gate in counter.gates.items()
    }


def _open_units(gate: Gate | None, decisions: Mapping[str, Tensor], units: int) -> Tensor:
    if gate is None:
        return torch.tensor(float(units))
    g_BG = decisions[gate.site.name]
    if gate.site.width % gate.config.block == 0:
        return g_BG.sum(-1) * gate.config.block
    return g_BG @ gate.block_sizes.to(g_BG)


def _sum_blocks(counts: Tensor, block: int, dim: int) -> Tensor:
    index = torch.arange(counts.shape[dim], device=counts.device) // block
    shape = list(counts.shape)
    shape[dim] = int(index[-1]) + 1
    return counts.new_zeros(shape).index_add_(dim, index, counts)
