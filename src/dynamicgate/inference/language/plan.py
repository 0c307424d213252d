"""The plan of a whole model: which way it runs, where the time goes, what is gated, and what bounds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dynamicgate.inference.plan import Regime, Verification

TORCH, BY_LAYER, WHOLE = "torch", "layer by layer", "whole model"
HALVES, BYTES = "whole model, half weights", "whole model, int8 weights"
NATIVE = (WHOLE, HALVES, BYTES)  # no layer in torch
WORDS = {
    TORCH: "the model as it is, in torch",
    BY_LAYER: "gated feed-forward layers native, the rest in torch",
    WHOLE: "all layers in one native call",
    HALVES: "all layers in one native call, weights that bfloat16 holds exactly in half of the bytes",
    BYTES: "all layers in one native call, weights rounded to int8 with a scale for each output",
}


@dataclass(frozen=True)
class ModelRegime:
    """One way to call the model."""

    name: str
    """In words: a prompt of so many tokens, one more token after so many, so many rows."""
    tokens: int
    """New rows or tokens of the call."""
    times: dict[str, float]
    """Median microseconds of every candidate."""
    parts: dict[str, float] = field(default_factory=dict)
    """Of the native decoder, the microseconds of each of its parts."""
    megabytes: float = 0.0
    """Weights and cached positions that one call of the native decoder reads at least once."""
    macs: float = 0.0
    """Multiply-accumulates that one call of the native decoder executes, with what the example opens."""


@dataclass(frozen=True)
class Machine:
    """What the machine reached in the process that made the plan, with as many threads."""

    read: float
    """GB/s, of a buffer that is larger than its caches."""
    multiply: float
    """GFLOP/s, of a product of float32 matrices; a multiply-accumulate is two operations."""


@dataclass(frozen=True)
class Rounding:
    """What rounding the weights changes on the example, both sides in float64."""

    loss: float
    """Nats for each next token of the example, by the model as it is."""
    rounded_loss: float
    same_token: float
    """The fraction of positions, those that have a next token, at which the most likely one is the same."""

    def __str__(self) -> str:
        return (
            f"rounded to int8: the example costs {self.rounded_loss:.4f} nats a token instead of {self.loss:.4f}, "
            f"and the most likely token is the same at {self.same_token:.1%} of its positions"
        )


@dataclass(frozen=True)
class LanguagePlan:
    """How a compiled model runs as a whole. `print` it."""

    chosen: str
    regimes: list[ModelRegime]
    open_rates: dict[str, float]
    """By gate, the fraction of its blocks that the example opens."""
    notes: list[str] = field(default_factory=list)
    verification: Verification | None = None
    """Positions that were compared with the float64 reference; None where nothing was replaced."""
    backend: str = "torch"
    threads: int = 1
    memory: float = 0.0
    """Bytes held, relative to the model."""
    rounding: Rounding | None = None
    """None where no weight is rounded, or where the example has no next token to say what that changes."""
    machine: Machine | None = None
    """None where nothing is native, and in plans of earlier versions."""

    @property
    def chains(self) -> list[list[Regime]]:
        """None: chains have regimes of their own, see `Plan`."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, lists and strings."""
        return asdict(self)

    @staticmethod
    def from_dict(found: Mapping[str, Any]) -> LanguagePlan:
        """The inverse of `to_dict`."""
        verified = found["verification"]
        regimes = [ModelRegime(**regime) for regime in found["regimes"]]
        verification = Verification(**verified) if verified else None
        rounding = Rounding(**found["rounding"]) if found.get("rounding") else None
        machine = Machine(**found["machine"]) if found.get("machine") else None
        made = {"regimes": regimes, "verification": verification, "rounding": rounding, "machine": machine}
        return LanguagePlan(**{**found, **made})

    def __str__(self) -> str:
        lines = [
            f"{self.backend}, threads: {self.threads}, memory: {self.memory:.2f} x the model",
            f"runs as: {self.chosen} ({WORDS[self.chosen]})",
        ]
        for regime in self.regimes:
            lines += ["", regime.name]
            lines += [
                f"  {name:<26}{us:>12,.1f} us" + ("  <- chosen" if name == self.chosen else "")
                for name, us in regime.times.items()
            ]
            total = sum(regime.parts.values())
            if total and self.chosen in NATIVE:
                shares = ", ".join(f"{part} {us / total:.0%}" for part, us in regime.parts.items())
                lines.append(f"  of the native call: {shares}")
            if self.chosen in NATIVE:
                lines += [f"  {line}" for line in _bounds(regime, regime.times[self.chosen], self.machine)]
        if self.open_rates:
            rates = self.open_rates.values()
            mean = sum(rates) / len(rates)
            lines += ["", f"gated: {len(rates)} layers, {mean:.1%} of their blocks open on the example, "
                      f"{min(rates):.1%} to {max(rates):.1%}"]  # fmt: skip
        if self.verification:
            found = self.verification
            of = "the rounded model" if self.chosen == BYTES else "the model"
            lines += ["", f"verified: {found.rows} positions agree with {of} in float64 within {found.error:.1e}, "
                      f"{found.near_threshold} near a threshold left out (rounding may change them)"]  # fmt: skip
        if self.chosen == BYTES:
            unknown = "rounded to int8: the example has no next token, so what that costs in loss is not known"
            lines.append(str(self.rounding or unknown))
        return "\n".join([*lines, *self.notes])


CLEARLY = 0.6  # of what the machine reaches: nearer to it nothing else can gain much
FROM_CACHE = 1.1  # more than memory gives, by more than the noise of both measurements


def _bounds(regime: ModelRegime, us: float, machine: Machine | None) -> list[str]:
    """How much a call reads and multiplies in its time, beside what the machine reaches, and which of the two bounds
    it."""
    us = max(us, 1e-9)
    read, multiplied = 1e3 * regime.megabytes / us, 2e-3 * regime.macs / us
    lines, fractions = [], {}
    if regime.megabytes:
        lines.append(f"reads {regime.megabytes:,.1f} MB of weights and cache, {read:,.1f} GB/s")
        if machine and machine.read:
            fractions["memory"] = read / machine.read
            lines[-1] += f": {fractions['memory']:.0%} of the {machine.read:,.1f} GB/s of this machine's memory"
    if regime.macs:
        lines.append(f"executes {regime.macs / 1e6:,.1f} M MACs, {multiplied:,.1f} GFLOP/s")
        if machine and machine.multiply:
            fractions["arithmetic"] = multiplied / machine.multiply
            lines[-1] += f": {fractions['arithmetic']:.0%} of the {machine.multiply:,.1f} GFLOP/s of its matrix product"
    if len(fractions) == 2:
        lines.append(_bound_by(fractions["memory"], fractions["arithmetic"]))
    return lines


def _bound_by(memory: float, arithmetic: float) -> str:
    if arithmetic >= max(memory, CLEARLY):
        return "bound by arithmetic"
    if memory > FROM_CACHE:
        return "its weights come from the processor's cache: memory does not bound it"
    if memory >= CLEARLY:
        return "bound by reading memory"
    nearer = "arithmetic" if arithmetic > memory else "reading memory"
    return f"bound by neither alone, nearer to {nearer}"
