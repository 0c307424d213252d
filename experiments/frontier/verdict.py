"""Who won: the cells won, tied and lost, on the page and in short for the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from statistics import fmean

from dynamicgate.lab.report.markdown_tables import markdown
from dynamicgate.lab.report.number_format import ABSENT

from .cells import BATCHES, CLOSE, JUDGED, Cells, Clock, Duel
from .sets import CONTROLS, OURS, OURS_IN_CELLS, TUNED_AT, UNGATED

SHORTLY = ("small", "random", "gate", "rigl", "pruned", OURS)


def overview(found: Mapping[str, Cells], fought: list[Duel]) -> str:
    """Mean accuracies of the main methods on every data set at one budget, beside the dense network."""

    def told(cells: Cells, method: str, budget: float | None) -> str:
        return f"{cells[method, budget].mean:.2f}" if (method, budget) in cells else ABSENT

    rows = [
        [name, *(told(cells, method, TUNED_AT) for method in SHORTLY), told(cells, "dense", None)]
        for name, cells in found.items()
    ]
    table = markdown([f"accuracy, % at {TUNED_AT:g}", *SHORTLY, "dense, at 1"], rows, numbers=True)
    return f"{table}\n\nAt 0.05, 0.1 and 0.2 against all {len(CONTROLS)} controls: {counted(fought, ' cells')}."


def on_the_clock(found: Mapping[str, Cells], clocks: Mapping[str, Clock]) -> str:
    """Time and accuracy of the form that is made for the clock, relative to dense."""
    rows = []
    for name, cells in found.items():
        for budget in JUDGED:
            key = OURS_IN_CELLS, budget
            if key in clocks[name] and key in cells:
                ratios = (clocks[name][key]["batches"][str(batch)]["ratio"] for batch in BATCHES)
                points = cells[key].mean - cells["dense", None].mean
                rows.append([name, f"{budget:g}", *(f"{ratio:.3f}" for ratio in ratios), f"{points:+.2f}"])
    times = (f"time at batch {batch}" for batch in BATCHES)
    return markdown([OURS_IN_CELLS, "MACs", *times, "accuracy to dense, points"], rows, numbers=True)


def summary(fought: list[Duel], ungated: list[Duel]) -> str:
    """Cells won, tied and lost, and every lost one by name; then what is left of them without gates."""
    if not fought:
        return "No runs yet.\n"
    rows = []
    for control in dict.fromkeys(duel.control for duel in fought):
        mine = [duel for duel in fought if duel.control == control]
        told = Counter(duel.outcome for duel in mine)
        mean = fmean(duel.points for duel in mine)
        rows.append([control, *(str(told[outcome]) for outcome in ("won", "tied", "lost")), f"{mean:+.2f}"])
    text = (
        f"## {counted(fought, ' cells')}\n\n"
        f"{OURS} against each control at budgets 0.05, 0.1 and 0.2; a difference of up to {CLOSE} points is a tie.\n\n"
        + markdown(["control", "won", "tied", "lost", "mean difference, points"], rows, numbers=True)
        + "\n"
        + lost("Lost", fought)
    )
    return text + what_gates_add(ungated)


def what_gates_add(ungated: list[Duel]) -> str:
    """The recipe against itself without gates, by budget: points of every data set."""
    if not ungated:
        return ""
    names = list(dict.fromkeys(duel.name for duel in ungated))
    points = {(duel.budget, duel.name): f"{duel.points:+.2f}" for duel in ungated}
    rows = [[f"{budget:g}", *(points.get((budget, name), ABSENT) for name in names)] for budget in JUDGED]
    return (
        f"\nAgainst itself without gates ({UNGATED}): {counted(ungated)}. What the gates add, in points:\n\n"
        + markdown(["budget", *names], rows, numbers=True)
        + "\n"
    )


def clock_summary(on_clock: Mapping[tuple[str, int], list[Duel]]) -> str:
    """The same on the clock, by method and batch size."""
    told = {
        ours: "; ".join(f"{counted(on_clock[ours, batch])} at batch {batch}" for batch in BATCHES)
        for ours in (OURS_IN_CELLS, OURS)
        if any(on_clock[ours, batch] for batch in BATCHES)
    }
    if OURS_IN_CELLS not in told:
        return ""
    faster = sum(duel.faster for batch in BATCHES for duel in on_clock[OURS_IN_CELLS, batch])
    text = (
        f"\nOn the clock: {told[OURS_IN_CELLS]}. That is {OURS_IN_CELLS} at the same budgets, compiled, on one thread, "
        "against each control, compiled too, at the same latency, where every method may take a model that is faster; "
        f"{faster} are won because no timed model of the control is as fast.\n"
    )
    text += "".join(lost(f"Lost at batch {batch}", on_clock[OURS_IN_CELLS, batch]) for batch in BATCHES)
    return text + (f"\nWith connections one by one ({OURS}): {told[OURS]}.\n" if OURS in told else "")


def untimed(clocks: Mapping[str, Clock]) -> str:
    """Which controls have no time, because their models were not at hand."""
    missing = {
        name: [m for m in CONTROLS if not any(method == m for method, _ in clock)]
        for name, clock in clocks.items()
        if clock
    }
    told = "; ".join(f"{name} {', '.join(methods)}" for name, methods in missing.items() if methods)
    return f"\nNot timed, for want of the trained models: {told}.\n" if told else ""


def counted(fought: list[Duel], what: str = "") -> str:
    """How many were won, tied and lost."""
    counts = Counter(duel.outcome for duel in fought)
    return f"{counts['won']}{what} won, {counts['tied']} tied, {counts['lost']} lost"


def lost(title: str, fought: list[Duel]) -> str:
    """Every lost one by name."""
    fallen = [duel for duel in fought if duel.outcome == "lost"]
    told = [
        f"{d.name} at {d.budget:g} to {d.control}, {d.points:+.2f}" + (f" ± {d.half:.2f}" if d.half is not None else "")
        for d in fallen
    ]
    sure = sum(d.half is not None and d.points < -d.half for d in fallen)
    paired = " ± is half a 95 % interval over paired seeds: {} beyond it.".format(
        {0: "none is", 1: "one is"}.get(sure, f"{sure} are")
    )
    return f"\n{title}: {'; '.join(told)}.{paired * any(d.half is not None for d in fallen)}\n" if told else ""
