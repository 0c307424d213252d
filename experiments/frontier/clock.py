"""Latency on the page: gated models against their twins without gates, and everything against the dense rival."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import geometric_mean

from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.frontier.latency import (
    DENSE_WAYS,
    MOST_SLOWER,
    TIMED,
    Latencies,
    Twins,
    mean_ratio,
    microseconds,
    refused,
    relative_times,
    rival_of,
    twins,
)
from experiments.frontier.methods import ANY_SPEED, BUDGETS, WITHOUT_GATES
from experiments.stages.latency import BATCHES


def latency_summary(found: Mapping[str, Latencies]) -> str:
    """Gated models against their twins; every one that is slower by more than a few per cent is named."""
    if not found:
        return "## Latency\n\nNot timed yet.\n"
    rows = twins(found)
    if not rows:
        return "## Latency\n\nNo gated model was timed beside its twin without gates.\n"
    slower = [row for row in rows if row.ratio > MOST_SLOWER]
    passed = [row for row in rows if (row.method, row.budget) not in refused(found[row.name])]
    names = "; ".join(f"{r.name} {r.method} {r.budget:g} at batch {r.batch}, {r.ratio:.2f}" for r in slower)
    means = " and ".join(
        f"{mean_ratio(of_batch):.2f} times as long at batch {batch}"
        for batch in BATCHES
        if (of_batch := [row for row in rows if row.batch == batch])
    )
    return (
        f"## Latency\n\nCompiled, one thread, the model of the first seed. Gated models take {means} as their twins "
        f"without gates (geometric means over {len(rows)} pairs of model and batch size). Slower by more than "
        f"{MOST_SLOWER - 1:.0%}: {len(slower)} of {len(rows)}" + (f" ({names})" if names else "") + ".\n\n"
        "Validation rows alone chose these gates. `dg.sparsify_`, and the model `sparsify` with `--clock`, also ask "
        "the clock, and drop gates that are slower at some batch size. So do the comparisons of this page: ours has "
        f"no gates there. Kept: {kept(passed)}.\n\n" + gate_on_the_clock(found)
    )


def kept(rows: Sequence[Twins]) -> str:
    """The gated models that are slower at no batch size, with their ratios."""
    models = dict.fromkeys((row.name, row.method, row.budget) for row in rows)
    return (
        "; ".join(
            f"{name} {method} {budget:g} ("
            + ", ".join(f"{r.ratio:.2f} at batch {r.batch}" for r in rows if (r.name, r.method, r.budget) == model)
            + ")"
            for model in models
            for name, method, budget in [model]
        )
        or "none"
    )


def gate_on_the_clock(found: Mapping[str, Latencies]) -> str:
    """The gate alone against the narrow network and against the dense rival."""
    parts = []
    for batch in BATCHES:
        small, dense = list[float](), list[float]()
        for latencies in found.values():
            for budget in BUDGETS:
                gate, narrow = (relative_times(latencies, f"{method} {budget:g}") for method in ("gate", "small"))
                if batch in gate and batch in narrow:
                    small.append(gate[batch] / narrow[batch])
                    dense.append(gate[batch])
        if small:
            parts.append(
                f"{geometric_mean(small):.2f} times as long as `small` and {geometric_mean(dense):.2f} times as long "
                f"as the dense rival at batch {batch} ({len(small)} models)"
            )
    if not parts:
        return ""
    return f"Gates alone, one for each unit, take {' and '.join(parts)}; geometric means.\n"


def latency_section(latencies: Latencies, has_gates: Callable[[str, float], bool]) -> str:
    """The latencies of a dataset relative to the dense rival; empty where nothing was timed. has_gates: whether ours
    has gates at a budget; else it is its twin without them."""
    if not latencies:
        return ""

    def ratios(method: str, budget: float) -> str:
        if method in WITHOUT_GATES and not has_gates(method, budget):
            method = WITHOUT_GATES[method]
        found = relative_times(latencies, f"{method.removesuffix(ANY_SPEED)} {budget:g}")
        return " / ".join(f"{ratio:.3f}" for ratio in found.values()) or ABSENT

    columns = [f"latency at batch {' / '.join(map(str, BATCHES))}", *(f"{budget:g}" for budget in BUDGETS)]
    rows = [[method, *(ratios(method, budget) for budget in BUDGETS)] for method in TIMED]
    slow = refused(latencies)
    rows += [
        [method + ANY_SPEED, *(ratios(method + ANY_SPEED, b) if (method, b) in slow else ABSENT for b in BUDGETS)]
        for method in WITHOUT_GATES
        if any(method == one for one, _ in slow)
    ]
    dense = []
    for batch in BATCHES:
        if rival := rival_of(latencies, batch):
            times = [
                f"{way.removeprefix('dense, ')} {t:.1f}"
                for way in DENSE_WAYS
                if (t := microseconds(latencies, way, batch))
            ]
            dense.append(f"batch {batch}: {', '.join(times)} µs, so the rival is {rival[0]}")
    return (
        f"{markdown(columns, rows, numbers=True)}\n\nRelative to the faster compiled form of the dense network. At "
        f"{'; '.join(dense)}.\n"
    )
