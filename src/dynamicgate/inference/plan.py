"""The plan of a compiled model: what was chosen for each layer and batch size, how it was verified, and notes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dynamicgate.display import ShownAsText


@dataclass(frozen=True)
class LayerPlan:
    """One layer at one batch size."""

    name: str
    shape: tuple[int, int]
    """Outputs and inputs of the Linear."""
    choice: str
    """How it runs, in words."""
    dense_us: float
    """Its part of `Regime.dense_us`."""
    chosen_us: float
    """Its part of `Regime.chosen_us`."""
    macs: float
    """Executed MACs per row on the example, with those of the gate on its outputs."""


@dataclass(frozen=True)
class Regime:
    """One chain of layers (on a GPU one feed-forward layer) at one batch size."""

    batch: int
    layers: list[LayerPlan]
    chosen: str
    """The name of the chosen candidate."""
    times: dict[str, float]
    """Median microseconds of every candidate of the last round, by name."""
    dense_us: float
    """The same layers without gates and masks: what one would run otherwise. On the CPU in eager torch, on a GPU the
    faster of eager and compiled torch."""
    compiled_dense_us: float | None = None
    """The same layers without gates and masks in our own kernels; None where that was not timed."""

    @property
    def fastest_dense_us(self) -> float:
        """The faster of the two: what the chosen candidate has to beat."""
        return self.dense_us if self.compiled_dense_us is None else min(self.dense_us, self.compiled_dense_us)

    @property
    def chosen_us(self) -> float:
        """Median microseconds of the chosen candidate."""
        return self.times[self.chosen]


@dataclass(frozen=True)
class Verification:
    """What the comparison with the reference model found."""

    rows: int
    """How many rows were compared."""
    near_threshold: int
    """How many rows were left out, because rounding may change one of their gate decisions."""
    error: float
    """The largest difference, relative to the largest output."""


@dataclass(frozen=True)
class WholeRegime:
    """The whole model on a GPU, for inputs of one shape."""

    tokens: int
    shape: tuple[int, ...]
    chosen: str
    """Whether it runs layer by layer or as one graph, and whether that is captured as a CUDA graph."""
    times: dict[str, float]
    """Median microseconds of every way, by name."""
    cached: int = 0
    """Positions in the cache before these tokens; 0 without one."""

    def __str__(self) -> str:
        others = ", ".join(f"{name} {us:,.0f}" for name, us in self.times.items() if name != self.chosen)
        shape = " x ".join(map(str, self.shape))
        shape += f" after {self.cached:,}" if self.cached else ""
        text = f"the whole model, {self.tokens:,} tokens ({shape}): {self.chosen}, {self.times[self.chosen]:,.0f} us"
        return f"{text} ({others})" if others else text


@dataclass(frozen=True, repr=False)
class Plan(ShownAsText):
    """How a compiled model runs. `print` it."""

    chains: list[list[Regime]]
    """For each chain one entry per batch size."""
    notes: list[str] = field(default_factory=list)
    """What stays in torch and why, and which blocks never opened."""
    verification: Verification | None = None
    """None if nothing was replaced, so that there was nothing to verify."""
    backend: str = "torch"
    threads: int = 1
    memory: float = 0.0
    """Bytes held, relative to the dense weights of the chains."""
    whole: list[WholeRegime] = field(default_factory=list)
    """On a GPU, how the model runs around its gated layers; nothing where it was not timed."""

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
        verified = found["verification"]
        whole = [WholeRegime(**{**regime, "shape": tuple(regime["shape"])}) for regime in found.get("whole", [])]
        verification = Verification(**verified) if verified else None
        return Plan(**{**found, "chains": chains, "whole": whole, "verification": verification})

    def _brief(self) -> str:
        each = [
            f"{regime.fastest_dense_us / regime.chosen_us:.2f} x dense at batch {regime.batch}"
            for chain in self.chains[:1]
            for regime in chain
        ]
        more = f" in the first of {len(self.chains)} chains" if len(self.chains) > 1 else ""
        return ", ".join(each) + more if each else "everything stays in torch"

    def __str__(self) -> str:
        rows = [x for chain in self.chains for regime in chain for x in regime.layers]
        name = max([len("layer"), *(len(x.name) for x in rows)])
        speeds = [len(_speed(regime)) for chain in self.chains for regime in chain]
        choice = max([len("choice"), *(len(x.choice) for x in rows), *speeds])

        def line(first: str, second: str, dense: float, chosen: float, macs: float) -> str:
            return f"{first:<{name}}  {second:<{choice}}  {dense:>10,.1f}  {chosen:>10,.1f}  {macs:>12,.0f}"

        head = f"{'layer':<{name}}  {'choice':<{choice}}  {'dense us':>10}  {'chosen us':>10}  {'MACs':>12}"
        lines = [f"{self.backend}, threads: {self.threads}, memory: {self.memory:.2f} x the dense weights"]
        for number, chain in enumerate(self.chains, 1):
            for regime in chain:
                lines += ["", f"batch {regime.batch}" + (f", chain {number}" if len(self.chains) > 1 else ""), head]
                lines += [line(x.name, x.choice, x.dense_us, x.chosen_us, x.macs) for x in regime.layers]
                macs = sum(x.macs for x in regime.layers)
                lines.append(line("all", _speed(regime), regime.dense_us, regime.chosen_us, macs))
                if regime.compiled_dense_us is not None:
                    lines.append(
                        f"compiled dense takes {regime.compiled_dense_us:,.1f} us: "
                        f"{regime.dense_us / regime.compiled_dense_us:.2f} x as fast as eager dense by kernels alone"
                    )
        lines += ["", *map(str, self.whole)] if self.whole else []
        if self.verification:
            found = self.verification
            lines += ["", f"verified: {found.rows} rows agree with the reference model within {found.error:.1e}, "
                      f"{found.near_threshold} near a threshold left out (rounding may change them)"]  # fmt: skip
        return "\n".join([*lines, *self.notes])


def _speed(regime: Regime) -> str:
    if regime.compiled_dense_us is None:
        rival = "dense"
    else:
        rival = "compiled dense" if regime.compiled_dense_us <= regime.dense_us else "eager dense"
    return f"{regime.fastest_dense_us / regime.chosen_us:.2f} x as fast as {rival}"
