"""Who wins: the primary comparisons, every control, the cells that are lost, and the short table of the README."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from dynamicgate.lab.statistics import Interval
from experiments.frontier.comparisons import (
    CELLS,
    Cell,
    Entries,
    Entry,
    against,
    against_best,
    area,
    best_control,
    compare,
    corrected,
    mean_difference,
)
from experiments.frontier.datasets import DATASETS
from experiments.frontier.methods import (
    ANY_SPEED,
    AT_A_BUDGET,
    BUDGETS,
    CONTROLS,
    DENSE,
    OURS,
    OURS_IN_TILES,
    PRUNED_IN_TILES,
    TUNED_AT,
    UNGATED,
    UNGATED_IN_TILES,
)

Found = Mapping[str, Entries]
Kind = Callable[[str, str, float], str]
"""From dataset, method and budget to the kind of gates that was chosen."""
NOTHING = "No runs yet.\n"


def with_half(mean: float, half: float | None, sign: str = "") -> str:
    """A number and half of its interval."""
    return f"{mean:{sign}.2f}" + ("" if half is None else f" ± {half:.2f}")


def of_interval(found: Interval | None) -> str:
    """A mean and half of its interval."""
    return ABSENT if found is None else with_half(found.mean, found.half)


def accuracy(entry: Entry | None, budget: float | None = None) -> str:
    """Mean accuracy and half of its interval, and the cost where it is not what was asked for."""
    if entry is None:
        return ABSENT
    return of_interval(entry.accuracy) + ("" if entry.meets(budget) else f" at {entry.relative:.3f}")


def p_value(p: float) -> str:
    """A p-value to three decimals."""
    return "<0.001" if p < 0.0005 else f"{p:.3f}"


def outcomes(cells: Sequence[Cell]) -> str:
    """How many cells are won, tied and lost."""
    counts = Counter(cell.outcome for cell in cells)
    return f"{counts['won']} won, {counts['tied']} tied, {counts['lost']} lost"


def points(mean: float, half: float | None) -> str:
    """A difference in words."""
    return f"{with_half(mean, half, '+')} points"


def in_one_line(found: Found, cells: Sequence[Cell]) -> str:
    """A family in a few words: cells and mean difference."""
    return f"{outcomes(cells)} of {len(cells)} cells; {points(*mean_difference(found, cells))} on average"


def overview(found: Found) -> str:
    """The table of the README: dense, the best control, ours without gates and ours, at one budget on all datasets."""
    columns = [f"accuracy, % at {TUNED_AT:g}", "dense (tuned), at 1", "best control", "ours without gates", "ours"]
    rows = []
    for name in DATASETS:
        entries = found.get(name, {})
        best = best_control(entries, TUNED_AT)
        shown = f"{accuracy(entries[best, TUNED_AT])} ({best})" if best else ABSENT
        cells = [accuracy(entries.get((method, TUNED_AT))) for method in (UNGATED, OURS)]
        rows.append([name, accuracy(entries.get((DENSE, None))), shown, *cells])
    return f"{markdown(columns, rows, numbers=True)}\n\n{headline(found)}"


def headline(found: Found) -> str:
    """Both primary comparisons in one sentence, or what is missing for them."""
    gates, best = against(found, OURS, UNGATED), against_best(found)
    if not gates or not best:
        return "The runs are still to be made."
    missing = CELLS - min(len(gates), len(best))
    partly = f" Of {CELLS} cells {missing} are still to be run." if missing else ""
    budgets = " and ".join([", ".join(f"{b:g}" for b in BUDGETS[:-1]), f"{BUDGETS[-1]:g}"])
    same = sum(cell.same for cell in gates)
    added = [] if same == len(gates) else [in_one_line(found, gates)]
    if same:
        added.append(
            f"in {same} of {len(gates)} cells the same model, because validation rows chose no gates or the clock "
            "refused them"
        )
    every = with_refused_gates(found)
    before = f" Before the clock refused any, gates gave {in_one_line(found, every)}." if every else ""
    return (
        f"At {budgets}, paired over seeds, Holm-corrected: ours against ours without gates: "
        f"{'; '.join(added)}.{before} "
        f"Ours against the best control of each cell {in_one_line(found, best)}.{partly}"
    )


def primary(found: Found, kind: Kind) -> str:
    """Both families with single connections, every cell with its interval and test, and those that are lost."""
    gates, best = against(found, OURS, UNGATED), against_best(found)
    if not gates and not best:
        return f"## The primary comparisons\n\n{NOTHING}"
    parts = ["## The primary comparisons", headline(found)]
    if gates:
        same = sum(cell.same for cell in gates)
        own = [cell for cell in gates if not cell.same]
        apart = f" Over the other {len(own)}: {points(*mean_difference(found, own))}." if own and same else ""
        parts += [
            f"### Ours against ours without gates\n\nIn {same} of {len(gates)} cells validation rows chose no gates, "
            f"or the clock refused them: both are the same model, and the cell is tied.{apart}",
            family(gates, lambda cell: kind(cell.name, cell.ours, cell.budget), "gates"),
            at_any_speed(found),
        ]
    if best:
        parts += [
            "### Ours against the best control of each cell\n\nThe best control is the most accurate one on test rows.",
            family(best, lambda cell: cell.control, "best control"),
        ]
    parts += [lost("gates", gates), lost("best control", best)]
    return "\n\n".join(part for part in parts if part) + "\n"


def at_any_speed(found: Found) -> str:
    """What the gates that the clock refused would have given, as the protocol had it before the clock was asked."""
    refused = against(found, OURS + ANY_SPEED, UNGATED)
    if not refused:
        return ""
    every = with_refused_gates(found)
    names = "; ".join(f"{c.name} at {c.budget:g} {with_half(c.difference, c.half, '+')}" for c in refused)
    return (
        "Gates that are slower than none at equal MACs, so that the clock refused them, in points of accuracy: "
        f"{names}. With them, as the protocol had it at first: {in_one_line(found, every)}."
    )


def with_refused_gates(found: Found) -> list[Cell]:
    """Ours against ours without gates, with the gates that the clock refused; empty where it refused none."""
    if not any(method == OURS + ANY_SPEED for entries in found.values() for method, _ in entries):
        return []
    return corrected(
        compare(name, budget, entries, OURS + ANY_SPEED if (OURS + ANY_SPEED, budget) in entries else OURS, UNGATED)
        for name, entries in found.items()
        for budget in BUDGETS
    )


def family(cells: Sequence[Cell], what: Callable[[Cell], str], title: str) -> str:
    """Every cell of a family."""
    rows = [
        [
            cell.name,
            f"{cell.budget:g}",
            what(cell),
            with_half(cell.difference, cell.half, "+") if not cell.same else "same model",
            ABSENT if cell.p is None or cell.same else p_value(cell.p),
            ABSENT if cell.same else p_value(cell.p_holm),
            str(cell.n),
            cell.outcome,
        ]
        for cell in cells
    ]
    columns = ["dataset", "budget", title, "difference, points", "p", "p, Holm", "seeds", "outcome"]
    return markdown(columns, rows, numbers=True)


def lost(title: str, cells: Sequence[Cell]) -> str:
    """The cells of a family that are lost, and those in which ours is lower without that being certain."""
    found = [cell for cell in cells if cell.outcome == "lost"]
    lower = [cell for cell in cells if cell.outcome == "tied" and cell.difference < 0.0 and not cell.same]
    if not cells:
        return ""

    def names(some: Sequence[Cell]) -> str:
        return "; ".join(
            f"{c.name} at {c.budget:g} to {c.control} {with_half(c.difference, c.half, '+')}" for c in some
        )

    return f"Lost ({title}): {names(found) or 'none'}. Lower, but tied: {names(lower) or 'none'}."


def every_control(found: Found) -> str:
    """Ours against each control, and the same with the recipe without gates."""
    rows = []
    for control in (*CONTROLS, UNGATED):
        cells = against(found, OURS, control)
        if not cells:
            continue
        without = against(found, UNGATED, control) if control != UNGATED else []
        counts = Counter(cell.outcome for cell in cells)
        rows.append(
            [
                control,
                *(str(counts[outcome]) for outcome in ("won", "tied", "lost")),
                with_half(*mean_difference(found, cells), sign="+"),
                with_half(*mean_difference(found, without), sign="+") if without else ABSENT,
            ]
        )
    if not rows:
        return ""
    columns = ["control", "won", "tied", "lost", "ours − control, points", "ours without gates − control, points"]
    return (
        "## Every control\n\nPaired tests over seeds, corrected by Holm over the cells of each control; a control that "
        f"misses a budget by more than a point is not compared there.\n\n{markdown(columns, rows, numbers=True)}\n"
    )


def tiles(found: Found) -> str:
    """The secondary families, with masks of tiles."""
    parts = []
    for control in (UNGATED_IN_TILES, PRUNED_IN_TILES):
        if cells := against(found, OURS_IN_TILES, control):
            parts += [
                f"{OURS_IN_TILES} against {control}: {in_one_line(found, cells)}.",
                family(cells, lambda cell: cell.control, "control"),
                lost(control, cells),
            ]
    return "\n\n".join(["## Masks of tiles of 16 outputs", *parts]) + "\n" if parts else ""


def areas(found: Found) -> str:
    """The area under the frontier of every method on every dataset."""
    if not found:
        return ""
    rows = [[method, *(of_interval(area(entries, method)) for entries in found.values())] for method in AT_A_BUDGET]
    return (
        f"## Areas\n\nMean accuracy over the logarithm of the budget, {BUDGETS[0]:g} to {BUDGETS[-1]:g}, in %, over "
        f"all seeds.\n\n{markdown(['area', *found], rows, numbers=True)}\n"
    )
