"""How often gates open the units at the two endpoints of a connection, and which units are dead (sec 3.8, Algorithm 3).

The gradient of a connection is zero for every row in which either of its units is closed. Without a correction, growth
would go to the units that are open most, and a rarely open unit would get no new connections.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.distributed import sum_
from dynamicgate.gating.channels import per_value
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, named_gates

MIN_COACTIVATION = 0.05  # a gradient from a smaller fraction of the rows is mostly noise and is not scaled up further


class OpenRates:
    """Open counts of every gate since the last update, and the dead blocks: those that never opened in that time."""

    def __init__(self, model: nn.Module) -> None:
        """Nothing counted yet."""
        self.gates = named_gates(model)
        self.rows = torch.zeros((), dtype=torch.float64)
        self.open_counts = {site: torch.zeros(gate.blocks, dtype=torch.float64) for site, gate in self.gates.items()}
        self.dead = {site: torch.zeros(gate.blocks, dtype=torch.bool) for site, gate in self.gates.items()}

    def add(self, used: Usage) -> None:
        """Count the decisions of one forward pass."""
        if set(used) != set(self.gates):
            raise ValueError(
                f"the sparsifier was made for gates at {', '.join(map(repr, self.gates)) or 'no site'}, these are at "
                f"{', '.join(map(repr, used))}: put gates on the model before the sparsifier"
            )
        if not self.gates:
            return  # a gate on stages closes no units in training
        for site in self.gates:
            g_BG = used[site].open.detach().flatten(0, -2)
            self.open_counts[site] = self.open_counts[site].to(g_BG.device) + g_BG.sum(0)
        self.rows = self.rows.to(g_BG.device) + len(g_BG)

    def take(self, *, needed: bool) -> dict[str, Tensor]:
        """The open rate of each block over all processes since the last call; resets the counts. An error
        if they are `needed` and there are none."""
        rows, open_counts = self._totals()
        if needed and not float(rows):  # of all processes: one of them may have had no rows
            raise ValueError(
                "this model has gates: call sparsifier.watch(used, penalty) between the forward and the backward pass, "
                "so that rarely open units get new connections too"
            )
        self.rows = torch.zeros_like(rows)
        self.open_counts = {site: torch.zeros_like(count) for site, count in open_counts.items()}
        return {site: (count / rows.clamp(min=1)).float() for site, count in open_counts.items()}

    def _totals(self) -> tuple[Tensor, dict[str, Tensor]]:
        """The counts summed over all processes."""
        device = next((gate.tau.device for gate in self.gates.values()), self.rows.device)
        if not self.gates:
            return self.rows, {}
        open_counts = {site: sum_(count.to(device, copy=True)) for site, count in self.open_counts.items()}
        return sum_(self.rows.to(device, copy=True)), open_counts

    def track_dead_units(self, rates: dict[str, Tensor]) -> dict[str, Tensor]:
        """Remember which blocks never opened; returns the blocks that were dead before and have opened since."""
        dead = {site: rate == 0.0 for site, rate in rates.items()}
        reopened = {site: self.dead[site].to(dead[site].device) & ~dead[site] for site in dead}
        self.dead = dead
        return reopened

    def state_dict(self) -> dict[str, Any]:
        """The counts summed over all processes. Every process must call it."""
        rows, open_counts = self._totals()
        state: dict[str, Any] = {"rows": rows} | {f"counts.{site}": count for site, count in open_counts.items()}
        return state | {f"dead.{site}": dead for site, dead in self.dead.items()}

    def load_state_dict(self, state: dict[str, Any], *, first: bool) -> None:
        """Restore `state_dict`. Only the `first` process takes the counts, or they would be counted several times."""
        self.rows = state["rows"] * float(first)
        for site in self.gates:
            self.open_counts[site] = state[f"counts.{site}"] * float(first)
            self.dead[site] = state[f"dead.{site}"]


class Endpoints:
    """The gates at the two endpoints of a layer's connections: on the units it writes and on the units it reads."""

    def __init__(self, layer: str, gates: dict[str, Gate]) -> None:
        """Find the gates around `layer`."""
        self.written = next((name for name, gate in gates.items() if layer in gate.site_at(name).producers), None)
        self.read = layer if layer in gates else None
        self._gates = gates

    @property
    def gated(self) -> bool:
        """Whether any gate acts on either endpoint."""
        return self.written is not None or self.read is not None

    def combine(
        self,
        values: dict[str, Tensor],
        shape: torch.Size,
        *,
        ungated: float,
        combine: Callable[[Tensor, Tensor], Tensor],
    ) -> Tensor | None:
        """The values of the two units of each connection, combined; `ungated` is the value of units without a gate.
        None where neither endpoint has a gate."""
        if not self.gated:
            return None
        rows, columns = (
            None if site is None else _per_value(self._gates[site], values[site].float(), size)
            for site, size in zip((self.written, self.read), shape, strict=True)
        )
        device = next(iter(values.values())).device
        rows_O1 = rows[:, None] if rows is not None else torch.full((shape[0], 1), ungated, device=device)
        columns_1I = columns[None, :] if columns is not None else torch.full((1, shape[1]), ungated, device=device)
        return combine(rows_O1, columns_1I)


def _per_value(gate: Gate, value_G: Tensor, size: int) -> Tensor | None:
    """The value of its unit for each of the `size` values that a layer writes or reads. A layer may write two for each
    unit, one half after the other, and read several of each channel, channel after channel. Where the queries of heads
    lie between keys and values is not known: None."""
    times, rest = divmod(size, gate.site.width)
    if gate.site.channels:
        return per_value(gate.per_unit(value_G), size)
    return None if rest or (times > 1 and gate.site.is_heads) else gate.per_unit(value_G).repeat(times)


def coactivation_rate(endpoints: Endpoints, rates: dict[str, Tensor], shape: torch.Size) -> Tensor | None:
    """The fraction of rows in which both units of a connection are open, no less than `MIN_COACTIVATION`."""
    both_open = endpoints.combine(rates, shape, ungated=1.0, combine=torch.mul)
    return None if both_open is None else both_open.clamp(min=MIN_COACTIVATION)


def connections_at(endpoints: Endpoints, marked: dict[str, Tensor], shape: torch.Size) -> Tensor | None:
    """The connections with a marked unit at either endpoint."""
    either = endpoints.combine(marked, shape, ungated=0.0, combine=torch.maximum)
    return None if either is None else (either > 0).expand(shape)
