"""Claims over all datasets of the paper, and which of our numbers decides each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dynamicgate.lab.report.number_format import signed_points
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.statistics import holm
from experiments.paper.evidence import Evidence, Verdict, verdict

COMPARABLE = 0.005  # half a point of accuracy
SIGNIFICANT = 0.05  # p-value
FIFTH = 0.2  # a budget of the frontier
DATA = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "tiny-imagenet": "Tiny-ImageNet",
    "speech": "Speech",
    "pbmc3k": "PBMC3k",
}
Decide = Callable[[Evidence], Verdict]


def everywhere(e: Evidence) -> Verdict:
    """The conclusion: less compute at competitive accuracy on all five datasets, by gates. What sparse layers save in
    gate+rigl is not theirs."""
    shown, holds = [], True
    where = frontier_or_ours(e, "gate", "dense")
    for table, name in DATA.items():
        loss, relative = (
            where.paired(table, "ours", "gate", "dense").difference,
            where.mean(table, "ours", "gate", "relative"),
        )
        holds &= loss >= -COMPARABLE and relative <= 0.41
        shown.append(f"{name} {signed_points(loss)} at {relative:.2f}")
    saved = [
        [100.0 * e.mean(table, "ours", "gate+rigl", f"{by}_saved") for table in DATA] for by in ("gate", "structure")
    ]
    gates, structure = (f"{min(values):.1f} to {max(values):.1f} %" for values in saved)
    fused = f"of gate+rigl, gates save {gates} of the dense MACs and missing connections {structure}"
    number = f"gate in points relative to dense at executed fraction: {'; '.join(shown)}; {fused}"
    return verdict(holds, f"{where.source}, {number}")


def frontier_or_ours(e: Evidence, *models: str) -> Evidence:
    """The runs of the frontier at a fifth of the cost, where all datasets have those of these models: tuned alike, with
    gates as they are now. Else the tables of the paper."""
    found = {(f"{table}/ours", model): list(_at_a_fifth(e, table, model)) for table in DATA for model in models}
    return Evidence(found, {}, source=f"the frontier at {FIFTH:g}") if all(found.values()) else e


def _at_a_fifth(e: Evidence, table: str, model: str) -> Sequence[Run]:
    found = e.frontier.get(table, {})
    return found.get((model, FIFTH)) or found.get((model, None), ())


def against(*controls: str) -> Decide:
    """Input-dependent gates against controls of equal cost, on all datasets; p-values corrected by Holm over them."""

    def decide(e: Evidence) -> Verdict:
        texts, holds, where = [], True, frontier_or_ours(e, "gate", *controls)
        for control in controls:
            found = {name: where.paired(table, "ours", "gate", control) for table, name in DATA.items()}
            p_values = dict(zip(found, holm([1.0 if x.p is None else x.p for x in found.values()]), strict=True))
            shown = "; ".join(f"{name} {signed_points(x.difference)}{_p(p_values[name])}" for name, x in found.items())
            texts.append(f"gate − {control} in points: {shown}")
            holds &= all(x.difference > 0 for x in found.values())
        why = (
            "; what of it is due to the input: docs/why-it-works.md" if where.source.startswith("the frontier") else ""
        )
        return verdict(holds, f"{where.source}, {'. '.join(texts)}{why}")

    return decide


def _p(p: float | None) -> str:
    return "" if p is None or p >= SIGNIFICANT else " (p < 0.001)" if p < 0.0005 else f" (p = {p:.3f})"


def not_speed(e: Evidence) -> Verdict:
    """What the published gates save by their own count, against the time of a training step."""
    found = {
        name: (e.mean(table, "published", "gate", "claimed"), e.mean(table, "published", "gate", "seconds_relative"))
        for table, name in DATA.items()
        if table != "tiny-imagenet"  # has no gate alone
    }
    shown = "; ".join(
        f"{name} {own:.2f} of the compute in {time:.2f} of the time" for name, (own, time) in found.items()
    )
    holds = all(time > own for own, time in found.values())
    return verdict(holds, f"a training step as published, by its own count: {shown}; latency: docs/compile.md")
