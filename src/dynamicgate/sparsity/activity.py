"""How often the units at the two ends of a layer are open: what rewiring must know of gates (sec 3.8, Algorithm 3).

The gradient of a connection is zero for every row in which either of its units is closed. Without a correction growth
would go to the units that are open most, and a rarely open one would starve.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.distributed import sum_
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, named_gates

RARELY = 0.05  # a gradient seen in fewer rows than this is mostly noise, and is not blown up further


class OpenRates:
    """Open counts of every gate since the last update, and which units stayed closed throughout."""

    def __init__(self, model: nn.Module) -> None:
        """Nothing seen yet."""
        self.gates = named_gates(model)
        self.rows = torch.zeros((), dtype=torch.float64)
        self.opened = {site: torch.zeros(gate.blocks, dtype=torch.float64) for site, gate in self.gates.items()}
        self.silent = {site: torch.zeros(gate.blocks, dtype=torch.bool) for site, gate in self.gates.items()}

    def add(self, used: Usage) -> None:
        """Count the decisions of one forward pass."""
        if set(used) != set(self.gates):
            raise ValueError(
                f"the sparsifier was made for gates at {', '.join(map(repr, self.gates)) or 'no site'}, these are at "
                f"{', '.join(map(repr, used))}: put gates on the model before the sparsifier"
            )
        for site in self.gates:
            g_BG = used[site].open.detach().flatten(0, -2)
            self.opened[site] = self.opened[site].to(g_BG.device) + g_BG.sum(0)
        self.rows = self.rows.to(g_BG.device) + len(g_BG)

    def take(self) -> dict[str, Tensor]:
        """The open rate of each block over all processes since the last call; counting begins anew."""
        rows, opened = self._totals()
        self.rows = torch.zeros_like(rows)
        self.opened = {site: torch.zeros_like(count) for site, count in opened.items()}
        return {site: (count / rows.clamp(min=1)).float() for site, count in opened.items()}

    def _totals(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The counts of all processes together."""
        device = next((gate.tau.device for gate in self.gates.values()), self.rows.device)
        if not self.gates:
            return self.rows, {}
        opened = {site: sum_(count.to(device, copy=True)) for site, count in self.opened.items()}
        return sum_(self.rows.to(device, copy=True)), opened

    def note_silence(self, rates: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remember which blocks were never open; returns those that were silent before and are not any more."""
        now = {site: rate == 0.0 for site, rate in rates.items()}
        revived = {site: self.silent[site].to(now[site].device) & ~now[site] for site in now}
        self.silent = now
        return revived

    def state_dict(self) -> dict[str, Any]:
        """The counts of all processes together. Every process must call it."""
        rows, opened = self._totals()
        state: dict[str, Any] = {"rows": rows} | {f"opened.{site}": count for site, count in opened.items()}
        return state | {f"silent.{site}": silent for site, silent in self.silent.items()}

    def load_state_dict(self, state: dict[str, Any], *, first: bool) -> None:
        """Go on from `state_dict`; only the `first` process takes the counts, or they would count several times."""
        self.rows = state["rows"] * float(first)
        for site in self.gates:
            self.opened[site] = state[f"opened.{site}"] * float(first)
            self.silent[site] = state[f"silent.{site}"]


class Ends:
    """The units that one layer writes and reads, as far as gates act on them."""

    def __init__(self, layer: str, gates: dict[str, Gate]) -> None:
        """Look for the gates at the two ends of `layer`."""
        self.written = next((name for name, gate in gates.items() if layer in gate.site_at(name).producers), None)
        self.read = layer if layer in gates else None
        self._gates = gates

    def both(self, values: dict[str, Tensor], shape: torch.Size, *, empty: float, join: Any) -> Tensor | None:
        """The values of the two units of each connection, joined; None where no gate has a say."""
        if self.written is None and self.read is None:
            return None
        rows, columns = (
            None if site is None else self._gates[site].per_unit(values[site].float())
            for site in (self.written, self.read)
        )
        device = next(iter(values.values())).device
        rows_O1 = rows[:, None] if rows is not None else torch.full((shape[0], 1), empty, device=device)
        columns_1I = columns[None, :] if columns is not None else torch.full((1, shape[1]), empty, device=device)
        return join(rows_O1, columns_1I)


def often(ends: Ends, rates: dict[str, Tensor], shape: torch.Size) -> Tensor | None:
    """The share of rows in which a connection can have a gradient, no less than `RARELY`."""
    together = ends.both(rates, shape, empty=1.0, join=torch.mul)
    return None if together is None else together.clamp(min=RARELY)


def touches(ends: Ends, marked: dict[str, Tensor], shape: torch.Size) -> Tensor | None:
    """The connections with a marked unit at either end."""
    either = ends.both(marked, shape, empty=0.0, join=torch.maximum)
    return None if either is None else (either > 0).expand(shape)
