"""The gate alone against a narrow network: what it gains, and how much of that is due to choosing by the input."""

from __future__ import annotations

from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.frontier.comparisons import Entries, Entry, compare
from experiments.frontier.methods import GATE_AT
from experiments.frontier.oracle import ORACLE
from experiments.frontier.summary import Found, with_half

OF_ORACLE = (
    "The oracle is the dense network, trained and used with the units of each layer that add most to the next one for "
    "the input at hand, as many as `small` has. It computes all of them to know which, and that is not counted: a gate "
    "has to guess them. Where it is above `small`, there is something to find; another rule might find more.\n\n"
)
OF_THE_INPUT = (
    "The mean mask keeps the units that are open most often, for every input alike: what it has over `small` is not "
    "due to choosing by the input.\n\n"
)
MEAN_MASK = "mean mask"


def gate_against_small(found: Found, oracles: Found) -> str:
    """The gate alone against a narrow dense network; what is left of that with one fixed mask for all inputs; and the
    oracle, whose choice is free, against it."""
    asked = [(name, budget) for name in found for budget in GATE_AT]
    rows, lower, worse, nothing_to_find = [], [], 0, []
    for name, budget in asked:
        entries = {**found[name], **oracles.get(name, {}), **with_mean_mask(found[name], budget)}
        cell = compare(name, budget, entries, "gate", "small")
        if cell is None:
            continue
        if cell.difference < 0.0:
            lower.append(f"{name} at {budget:g}")
            worse += cell.half is not None and cell.difference < -cell.half
        gate = entries["gate", budget]
        missed = "" if gate.meets(budget) else f" at {gate.relative:.3f}"
        shown = [compare(name, budget, entries, method, "small") for method in (MEAN_MASK, ORACLE)]
        free = shown[1]
        if cell.difference < 0.0 and free and free.half is not None and free.difference <= free.half:
            gained = with_half(free.difference, free.half, "+")
            nothing_to_find.append(f" At {name} {budget:g} the oracle gains {gained}: no more than chance.")
        rows.append([
            name, f"{budget:g}", with_half(cell.difference, cell.half, "+") + missed, by_input(gate),
            *(with_half(c.difference, c.half, "+") if c else ABSENT for c in shown),
        ])  # fmt: skip
    if not rows:
        return ""
    columns = [
        "dataset", "budget", "gate − small, points", "gates that depend on the input", "mean mask − small, points",
        "oracle − small, points",
    ]  # fmt: skip
    return (
        "## Gates alone against a narrow network\n\n"
        f"The mean of `gate` is at least that of `small` in {len(rows) - len(lower)} of {len(rows)} cells at 0.1 and "
        f"0.2. Lower: {', '.join(lower) or 'none'}; beyond the 95 % interval: {worse}.{''.join(nothing_to_find)}\n\n"
        f"{OF_THE_INPUT}{OF_ORACLE}{markdown(columns, rows, numbers=True)}\n"
    )


def with_mean_mask(entries: Entries, budget: float) -> Entries:
    """The gate with its most open units for every input instead of those it chooses; where no gate depends on the
    input, as it is."""
    runs = [
        {**run, "quality": {"accuracy": run.get("accuracy_of_mean_mask", run["quality"]["accuracy"])}}
        for run in (entries["gate", budget].runs if ("gate", budget) in entries else ())
    ]
    return {(MEAN_MASK, budget): Entry(runs)} if runs else {}


def by_input(gate: Entry) -> str:
    """How many of its gates still depend on the input: those that hardly do are folded into their layers."""
    kinds = [one["kind"] for run in gate.runs for one in run["gates"]]
    return f"{kinds.count('dynamic')} of {len(kinds)}"
