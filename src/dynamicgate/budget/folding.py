"""Which gates earn their network: one that moves less than it costs becomes constant, and units get its MACs.

A gate that chooses by the input pays for a network. If a constant gate would open nearly the same units, that network
buys nothing. Once the budget has come down, decisions are averaged for a while. What differs between inputs is what a
constant gate would get wrong: for each block the rarer of its two answers. A gate whose differing units do fewer MACs
than its network is folded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.gating.folding import can_fold, fold_
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage

WATCHED = 0.05  # of training: over so much of it decisions are averaged


@dataclass(frozen=True)
class Folded:
    """A gate that became constant. moved, cost: MACs per sample, of the units that its choice moved, of its network."""

    site: str
    progress: float
    moved: float
    cost: float

    def __str__(self) -> str:
        return (
            f"the gate at {self.site!r} became constant at {self.progress:.0%} of training: choosing by the input "
            f"moved {self.moved:,.0f} MACs, and its network cost {self.cost:,.0f}"
        )


@dataclass
class GateWatch:
    """The mean decisions and logits of the gates since the budget came down."""

    steps: int = 0
    opened: dict[str, Tensor] = field(default_factory=dict)
    logits: dict[str, Tensor] = field(default_factory=dict)
    decided: bool = False
    waiting: list[Folded] = field(default_factory=list)
    """Found, to be folded before the next forward pass."""

    @torch.no_grad()
    def add(self, gates: Mapping[str, Gate], used: Usage) -> None:
        """Take in the decisions of one step."""
        self.steps += 1
        for site, gate in gates.items():
            if can_fold(gate):
                for sums, value in ((self.opened, used[site].open), (self.logits, used[site].logits)):
                    mean_G = value.detach().flatten(0, -2).double().mean(0)
                    sums[site] = sums[site] + mean_G if site in sums else mean_G

    @torch.no_grad()
    def decide(self, counter: MacCounter, used: Usage, progress: float) -> None:
        """Find the gates that move less than they cost."""
        self.decided = True
        now = deployed(counter.gates, used)
        for site, sum_G in self.opened.items():
            gate = counter.gates[site]
            rate_G, sizes_G = sum_G / self.steps, gate.block_sizes.double()
            differing = float((torch.minimum(rate_G, 1.0 - rate_G) * sizes_G).sum())
            opened = float((rate_G * sizes_G).sum())
            around = [part for part in counter.parts if site in (part.read.site, part.written.site)]
            executed = sum(float(part.executed(now).double().mean()) * part.rows for part in around)
            moved, cost = differing / max(opened, 1e-12) * executed, counter.gate_macs(site)
            if moved < cost:
                self.waiting.append(Folded(site, progress, moved, cost))

    def fold_(self, gates: Mapping[str, Gate]) -> list[Folded]:
        """Fold what was found; returns it."""
        folded, self.waiting = self.waiting, []
        for found in folded:
            gate = gates[found.site]
            fold_(gate, (self.logits[found.site] / self.steps).to(gate.bias))
        if self.decided:
            self.opened, self.logits = {}, {}
        return folded

    def state_dict(self) -> dict[str, Any]:
        """All of it, as plain JSON values."""
        sums = {name: {site: t.tolist() for site, t in getattr(self, name).items()} for name in ("opened", "logits")}
        return {"steps": self.steps, **sums, "decided": self.decided, "waiting": [vars(one) for one in self.waiting]}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> GateWatch:
        """What `state_dict` described."""
        sums = {
            name: {site: torch.tensor(rows, dtype=torch.float64) for site, rows in state[name].items()}
            for name in ("opened", "logits")
        }
        waiting = [Folded(**one) for one in state["waiting"]]
        return cls(state["steps"], **sums, decided=state["decided"], waiting=waiting)
