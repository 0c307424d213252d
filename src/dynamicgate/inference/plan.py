"""What was decided and why: one row for each layer and batch size, and what had to stay as it was."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class LayerPlan:
    """One layer at one batch size. The times of a chain are split over its layers by timing its beginnings."""

    name: str
    shape: tuple[int, int]
    choice: str
    dense_us: float
    chosen_us: float
    macs: float
    """Executed per row on the example, with those of the gate on its outputs."""


@dataclass(frozen=True)
class Regime:
    """One chain at one batch size."""

    batch: int
    layers: list[LayerPlan]
    chosen: str
    times: dict[str, float]
    """Median microseconds of every candidate of the last round."""
    dense_us: float
    """The same layers without gates and masks: what one would run otherwise. On the CPU in eager torch, on a GPU the
    faster of eager and compiled torch."""

    @property
    def chosen_us(self) -> float:
        """Median microseconds of the chosen form."""
        return self.times[self.chosen]


@dataclass(frozen=True)
class Plan:
    """How a compiled model runs. `print` it."""

    chains: list[list[Regime]]
    notes: list[str] = field(default_factory=list)
    """What stays in torch and why, and which units never opened."""
    checked: dict[str, float] = field(default_factory=dict)
    """Rows compared with the hard model, rows at a threshold that were left out, and the largest relative error."""
    backend: str = "torch"
    threads: int = 1
    memory: float = 0.0
    """Bytes held, relative to the dense weights of the chains."""

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> Plan:
        """The inverse of `to_dict`."""
        chains = [
            [
                Regime(**{**r, "layers": [LayerPlan(**{**x, "shape": tuple(x["shape"])}) for x in r["layers"]]})
                for r in chain
            ]
            for chain in found["chains"]
        ]
        return Plan(**{**found, "chains": chains})

    def __str__(self) -> str:
        rows = [x for chain in self.chains for regime in chain for x in regime.layers]
        name = max([len("layer"), *(len(x.name) for x in rows)])
        choice = max([len("choice"), *(len(x.choice) for x in rows)])

        def line(first: str, second: str, dense: float, chosen: float, macs: float) -> str:
            return f"{first:<{name}}  {second:<{choice}}  {dense:>10,.1f}  {chosen:>10,.1f}  {macs:>12,.0f}"

        head = f"{'layer':<{name}}  {'choice':<{choice}}  {'dense us':>10}  {'chosen us':>10}  {'MACs':>12}"
        lines = [f"{self.backend}, threads: {self.threads}, memory: {self.memory:.2f} x the dense weights"]
        for number, chain in enumerate(self.chains, 1):
            for regime in chain:
                lines += ["", f"batch {regime.batch}" + (f", chain {number}" if len(self.chains) > 1 else ""), head]
                lines += [line(x.name, x.choice, x.dense_us, x.chosen_us, x.macs) for x in regime.layers]
                speed = f"{regime.dense_us / regime.chosen_us:.2f} x as fast as dense"
                macs = sum(x.macs for x in regime.layers)
                lines.append(line("all", speed, regime.dense_us, regime.chosen_us, macs))
        if self.checked:
            rows_, ties, error = (self.checked[key] for key in ("rows", "ties", "error"))
            lines += ["", f"checked: {rows_:.0f} rows agree with the hard model within {error:.1e}, {ties:.0f} at a "
                      "threshold left out"]  # fmt: skip
        return "\n".join([*lines, *self.notes])
