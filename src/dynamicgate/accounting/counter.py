"""The one MAC counter: what every Linear layer executes, given which blocks are open (sec 3.6, 3.8(3)).

A layer with gates on both sides executes, for one row, ``g_out^T C g_in`` multiply-accumulates, where C counts the
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
from dynamicgate.gating.sites import Site
from dynamicgate.masks import connections, present
from dynamicgate.modules import unwrap


@dataclass(frozen=True, eq=False, kw_only=True)
class LayerMacs:
    """One Linear layer of the base model and the gates on its two sides."""

    name: str
    linear: nn.Linear
    rows: float
    """Rows this layer processes for one sample: 1 in an MLP, the number of tokens in a sequence model."""
    in_site: str | None
    in_gate: Gate | None
    out_site: str | None
    out_gate: Gate | None
    _block_counts: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    @property
    def dense(self) -> int:
        """MACs of one row with everything open and every connection present."""
        return self.linear.in_features * self.linear.out_features

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
            inputs = _open_units(self.in_gate, self.in_site, decisions, self.linear.in_features)
            outputs = _open_units(self.out_gate, self.out_site, decisions, self.linear.out_features)
            return inputs * outputs
        counts_OI = self._connections_between_blocks(mask)
        g_in = decisions[self.in_site] if self.in_site is not None else counts_OI.new_ones(1)
        g_out = decisions[self.out_site] if self.out_site is not None else counts_OI.new_ones(1)
        return ((g_out @ counts_OI) * g_in).sum(-1)

    def _connections_between_blocks(self, mask: Tensor) -> Tensor:
        """Counted again only when the mask has changed: every training step needs it, and masks change rarely."""
        cached = self._block_counts
        if cached.get("mask") is not mask or cached["version"] != mask._version:
            cached.update(mask=mask, version=mask._version, counts=self._count_blocks(mask))
        return cached["counts"]

    def _count_blocks(self, mask: Tensor) -> Tensor:
        counts = mask.float()
        if self.out_gate is None:
            counts = counts.sum(0, keepdim=True)
        else:
            counts = _sum_blocks(counts, self.out_gate.config.block, dim=0)
        if self.in_gate is None:
            return counts.sum(1, keepdim=True)
        return _sum_blocks(counts, self.in_gate.config.block, dim=1)


class MacCounter:
    """The layers, gates and fixed costs of a model, ready to be counted. Made by `count_macs(model, example)`."""

    def __init__(
        self, model: nn.Module, *, rows: Mapping[str, float], other: float = 0.0, readers_only: bool = False
    ) -> None:
        """Count `model`, whose Linear layers process `rows` rows for one sample, by layer name.

        rows: a layer that is absent was not called on its own (attention calls its projection by another way) and is
            part of `other`. `count_macs` finds both by running the model on an example.
        other: MACs per sample of everything that is not a Linear layer.
        readers_only: count as the published MNIST and Speech Commands code does: a closed unit saves the work of the
            layer that reads it, never that of the layer that writes it.
        """
        base = unwrap(model)
        self.gates = named_gates(base)
        self.sites = {name: gate.site_at(name) for name, gate in self.gates.items()}
        self.rows, self.other = dict(rows), other
        writers = [name for name in self.gates if self.saves_producers(name) and not readers_only]
        written_by = {producer: name for name in writers for producer in self.sites[name].producers}
        inside_gates = {id(m) for gate in self.gates.values() for m in gate.modules()}
        self.layers = [
            LayerMacs(
                name=name,
                linear=m,
                rows=rows[name],
                in_site=name if name in self.gates else None,
                in_gate=self.gates.get(name),
                out_site=written_by.get(name),
                out_gate=self.gates[written_by[name]] if name in written_by else None,
            )
            for name, m in base.named_modules()
            if isinstance(m, nn.Linear) and id(m) not in inside_gates and name in rows
        ]
        self._gate_rows = {name: rows[site.source] for name, site in self.sites.items()}
        nets = [m for gate in self.gates.values() for m in gate.net.modules() if isinstance(m, nn.Linear)]
        self._linears = [*nets, *(layer.linear for layer in self.layers)]
        self._cache: dict[str, tuple[Any, float]] = {}

    @classmethod
    def for_mlp(cls, model: nn.Module, *, readers_only: bool = False) -> MacCounter:
        """The counter of an MLP: every Linear layer runs exactly once for every sample, and nothing else costs MACs.
        Nothing checks that; for any other model use `count_macs(model, example)`."""
        linears = [name for name, m in unwrap(model).named_modules() if isinstance(m, nn.Linear)]
        return cls(model, rows=dict.fromkeys(linears, 1.0), readers_only=readers_only)

    def saves_producers(self, site: str) -> bool:
        """Whether closed units of a site also save the work of the layers that write them: a gate that reads its own
        layer's output comes too late for that."""
        return saves_producers(self.gates[site], self.sites[site])

    @cached_property
    def dense(self) -> float:
        """MACs per sample of the base model: no gates, no masks."""
        return sum(layer.dense * layer.rows for layer in self.layers) + self.other

    @property
    def gate(self) -> float:
        """MACs per sample of all gate networks, counted in full: they run on every input."""
        return self._cached(
            "gate", lambda: float(sum(gate.macs * self._gate_rows[name] for name, gate in self.gates.items()))
        )

    @property
    def all_open(self) -> float:
        """`relative` with every gate open: the most that the present connections can execute."""
        return self._cached("all_open", lambda: self.relative_at(1.0))

    def all_open_without(self, removed: Callable[[nn.Linear], float]) -> float:
        """`all_open` after `removed(layer)` more connections of each Linear layer have been pruned."""

        def count() -> float:
            going = sum(removed(layer.linear) * layer.rows for layer in self.layers)
            return self.all_open - going / self.dense

        return self._cached("all_open_without", count)

    def _cached(self, name: str, count: Callable[[], float]) -> float:
        """Counted again only when a mask has changed: every training step asks, and on a GPU an answer is a wait."""
        masks = [connections(linear) for linear in self._linears]
        now = [None if mask is None else (id(mask), mask._version) for mask in masks]
        if name not in self._cache or self._cache[name][0] != now:
            self._cache[name] = (now, count())
        return self._cache[name][1]

    def executed(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """Mean MACs per sample under `decisions`, gate networks and everything else included."""
        total = torch.zeros(())
        for layer in self.layers:
            macs = layer.executed(decisions)
            total = total + macs.sum() / max(1, macs.numel()) * layer.rows  # no rows (an empty slice of a rank) cost 0
        return total + self.gate + self.other

    def relative(self, decisions: Mapping[str, Tensor]) -> Tensor:
        """`executed` as a fraction of `dense`: the headline number."""
        return self.executed(decisions) / self.dense

    def relative_at(self, open_rate: float) -> float:
        """What the model would cost if every gate were open for this fraction of inputs, independently."""
        rates = {
            name: torch.full((1, gate.blocks), open_rate, device=gate.tau.device) for name, gate in self.gates.items()
        }
        return float(self.relative(rates))


def saves_producers(gate: Gate, site: Site) -> bool:
    """Whether closing units saves the work of the layers that write them."""
    return gate.config.kind == "static" or site.source != site.consumer or site.is_input


def deployed(gates: Mapping[str, Gate], used: Mapping[str, Decision]) -> dict[str, Tensor]:
    """The decisions that count: hard gates as they are, a gate that is evaluated softly as open throughout."""
    return {
        name: torch.ones_like(used[name].open) if gate.config.evaluate == "soft" else used[name].open
        for name, gate in gates.items()
    }


def _open_units(gate: Gate | None, site: str | None, decisions: Mapping[str, Tensor], units: int) -> Tensor:
    if gate is None or site is None:
        return torch.tensor(float(units))
    g_BG = decisions[site]
    if gate.site.width % gate.config.block == 0:
        return g_BG.sum(-1) * gate.config.block
    return g_BG @ gate.block_sizes.to(g_BG)


def _sum_blocks(counts: Tensor, block: int, dim: int) -> Tensor:
    index = torch.arange(counts.shape[dim], device=counts.device) // block
    shape = list(counts.shape)
    shape[dim] = int(index[-1]) + 1
    return counts.new_zeros(shape).index_add_(dim, index, counts)
