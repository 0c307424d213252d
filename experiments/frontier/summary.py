"""Who wins: comparisons won, tied and lost, on the page and in short for the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.frontier.comparisons import BATCHES, COMPARED_AT, TIE, Comparison, Entries, Latencies, comparisons
from experiments.frontier.datasets import CONTROLS, OURS, OURS_IN_TILES, TUNED_AT, UNGATED

MAIN_METHODS = ("small", "random", "gate", "rigl", "pruned", OURS)


def overview(found: Mapping[str, Entries], compared: Sequence[Comparison]) -> str:
    """Mean accuracies of the main methods on every dataset at one budget, beside the dense network."""

    def accuracy(entries: Entries, method: str, budget: float | None) -> str:
        return f"{entries[method, budget].mean:.2f}" if (method, budget) in entries else ABSENT

    rows = [
        [name, *(accuracy(entries, method, TUNED_AT) for method in MAIN_METHODS), accuracy(entries, "dense", None)]
        for name, entries in found.items()
    ]
    table = markdown([f"accuracy, % at {TUNED_AT:g}", *MAIN_METHODS, "dense, at 1"], rows, numbers=True)
    counts = count_outcomes(compared, " comparisons")
    return f"{table}\n\nAt 0.05, 0.1 and 0.2 against all {len(CONTROLS)} controls: {counts}."


def caveats(
    found: Mapping[str, Entries],
    compared: Sequence[Comparison],
    ungated: Sequence[Comparison],
    latencies: Mapping[str, Latencies],
) -> str:
    """What a reader of the README's table has to know, with the controls that could refute it."""
    without = [one for name, entries in found.items() for one in comparisons(name, entries, ours=UNGATED)]
    gated = [one for one in ungated if any(run["gates"] for run in found[one.name][OURS, one.budget].runs)]
    pruned = [one for one in compared if one.control == "pruned"]
    slower = {batch: _latency_of_gates(gated, latencies, batch) for batch in BATCHES}
    lines = [
        f"**The gates are not what wins here.** The same recipe without gates is about as good: against the same "
        f"controls it has {count_outcomes(without)}. Over the {len(gated)} comparisons in which the model has gates at "
        f"all, they change accuracy by {fmean(one.points for one in gated):+.2f} points on average.",
        f"**The strongest control is close.** Against `pruned` alone: {count_outcomes(pruned)}, "
        f"{fmean(one.points for one in pruned):+.2f} points on average.",
        "**Gates cost time on a CPU at equal MACs.** Compiled, gated models take "
        + " and ".join(f"{ratio:.2f} times as long at batch {batch}" for batch, ratio in slower.items())
        + " as their ungated counterparts (geometric means over the same comparisons).",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _latency_of_gates(gated: Sequence[Comparison], latencies: Mapping[str, Latencies], batch: int) -> float:
    ratios = [
        latencies[one.name][OURS, one.budget]["batches"][str(batch)]["ratio"]
        / latencies[one.name][UNGATED, one.budget]["batches"][str(batch)]["ratio"]
        for one in gated
        if {(OURS, one.budget), (UNGATED, one.budget)} <= latencies[one.name].keys()
    ]
    return geometric_mean(ratios)


def summary(compared: Sequence[Comparison], ungated: Sequence[Comparison]) -> str:
    """Comparisons won, tied and lost, and every lost one by name; then the comparison with the recipe without gates."""
    if not compared:
        return "No runs yet.\n"
    rows = []
    for control in dict.fromkeys(one.control for one in compared):
        mine = [one for one in compared if one.control == control]
        outcomes = Counter(one.outcome for one in mine)
        mean = fmean(one.points for one in mine)
        rows.append([control, *(str(outcomes[outcome]) for outcome in ("won", "tied", "lost")), f"{mean:+.2f}"])
    text = (
        f"## {count_outcomes(compared, ' comparisons')}\n\n"
        f"{OURS} against each control at budgets 0.05, 0.1 and 0.2; a difference of up to {TIE} points is a tie.\n\n"
        + markdown(["control", "won", "tied", "lost", "mean difference, points"], rows, numbers=True)
        + "\n"
        + list_lost("Lost", compared)
    )
    return text + what_gates_add(ungated)


def what_gates_add(ungated: Sequence[Comparison]) -> str:
    """The recipe against itself without gates, by budget: points on every dataset."""
    if not ungated:
        return ""
    names = list(dict.fromkeys(one.name for one in ungated))
    points = {(one.budget, one.name): f"{one.points:+.2f}" for one in ungated}
    rows = [[f"{budget:g}", *(points.get((budget, name), ABSENT) for name in names)] for budget in COMPARED_AT]
    return (
        f"\nAgainst the same recipe without gates ({UNGATED}): {count_outcomes(ungated)}. What the gates add, in "
        f"points:\n\n{markdown(['budget', *names], rows, numbers=True)}\n"
    )


def latency_summary(compared: Mapping[tuple[str, int], Sequence[Comparison]]) -> str:
    """The comparisons at equal latency, by method and batch size."""
    counts = {
        ours: "; ".join(f"{count_outcomes(compared[ours, batch])} at batch {batch}" for batch in BATCHES)
        for ours in (OURS_IN_TILES, OURS)
        if any(compared[ours, batch] for batch in BATCHES)
    }
    if OURS_IN_TILES not in counts:
        return ""
    faster = sum(one.faster for batch in BATCHES for one in compared[OURS_IN_TILES, batch])
    text = (
        f"\nAt equal latency: {counts[OURS_IN_TILES]}. This compares {OURS_IN_TILES} at the same budgets, compiled, on "
        "one thread, with each control, compiled too, at the same latency, where every method may use a faster model "
        f"instead; {faster} are won because no timed model of the control is as fast.\n"
    )
    text += "".join(list_lost(f"Lost at batch {batch}", compared[OURS_IN_TILES, batch]) for batch in BATCHES)
    return text + (f"\nWith unstructured masks ({OURS}): {counts[OURS]}.\n" if OURS in counts else "")


def list_untimed(latencies: Mapping[str, Latencies]) -> str:
    """The controls that were not timed, because their trained models were not at hand."""
    missing = {
        name: [m for m in CONTROLS if not any(method == m for method, _ in timed)]
        for name, timed in latencies.items()
        if timed
    }
    text = "; ".join(f"{name} {', '.join(methods)}" for name, methods in missing.items() if methods)
    return f"\nNot timed, because the trained models were missing: {text}.\n" if text else ""


def count_outcomes(compared: Sequence[Comparison], noun: str = "") -> str:
    """How many were won, tied and lost."""
    counts = Counter(one.outcome for one in compared)
    return f"{counts['won']}{noun} won, {counts['tied']} tied, {counts['lost']} lost"


def list_lost(title: str, compared: Sequence[Comparison]) -> str:
    """Every lost comparison by name."""
    lost = [one for one in compared if one.outcome == "lost"]
    names = [
        f"{x.name} at {x.budget:g} to {x.control}, {x.points:+.2f}" + (f" ± {x.half:.2f}" if x.half is not None else "")
        for x in lost
    ]
    beyond = sum(x.half is not None and x.points < -x.half for x in lost)
    intervals = " ± is half of a 95 % interval over paired seeds: {} beyond it.".format(
        {0: "none is", 1: "one is"}.get(beyond, f"{beyond} are")
    )
    return f"\n{title}: {'; '.join(names)}.{intervals * any(x.half is not None for x in lost)}\n" if names else ""
