"""docs/why-it-works.md and its figures, made from the JSON of the runs: the same runs, the same bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from statistics import fmean, stdev

from dynamicgate.files import write_text
from dynamicgate.report.markdown import markdown

from .ablation import AS_IT_IS, RIVALS, TRIED_ON, VARIANTS
from .ablation import BUDGETS as TRIED
from .cells import CLOSE, Cell, Cells, Duel, area, duels, read_cells
from .plot import plot
from .sets import AT_A_BUDGET, AT_FULL_COST, BUDGETS, OURS, OURS_IN_CELLS, SETS

PAGE = Path("docs") / "why-it-works.md"
FIGURES = Path("docs") / "figures"
FOLDER = Path(__file__).resolve().parent
ABSENT = "–"
INTRO = f"""\
# Why it works, and where it does not

<!-- Made by `python experiments/frontier page` from experiments/results/frontier: do not edit. -->

Every method, trained to the same share of the dense network's MACs (gate networks and output layer counted, hard gates,
no skipping of zeros) with the same epochs and the same tuning: for each method three learning rates with and without
dropout, judged by validation rows. Test rows are measured once, at the end of a run.

```bash
python experiments/frontier digits    # all methods and budgets on one data set; finished runs are found
python experiments/frontier page      # this page again, from the committed results
```

`{OURS}` has the defaults of the library everywhere: nothing about its gates is set for a data set.
"""


def write(root: Path, results: Path, *, quick: bool = False) -> None:
    """Write the page and the figures of all data sets that have runs."""
    found = {name: read_cells(FOLDER, results, name, quick=quick) for name in SETS}
    found = {name: (cells, data) for name, (cells, data) in found.items() if cells}
    where = results.parent if quick else root
    fought = [duel for name, (cells, _) in found.items() for duel in duels(name, cells)]
    parts = [INTRO, summary(fought), search(results, quick=quick)]
    for name, (cells, data) in found.items():
        write_text(where / FIGURES / f"frontier-{name}.svg", plot(name, cells))
        rows = f"{data['train']:,} training, {data['valid']:,} validation, {data['test']:,} test rows"
        sizes = "-".join(map(str, (data["features"], *SETS[name].hidden, data["classes"])))
        figure = f"![Accuracy against executed MACs on {name}](figures/frontier-{name}.svg)"
        parts.append(f"## {name}, {sizes}\n\n{rows}.\n\n{figure}\n\n{accuracies(cells)}\n\n{gates(cells)}")
    write_text(where / PAGE, "\n".join(parts).rstrip("\n") + "\n")
    counts = Counter(duel.outcome for duel in fought)
    print(f"{OURS} against the controls: {counts['won']} cells won, {counts['tied']} tied, {counts['lost']} lost")
    print(f"wrote {where / PAGE}")


def summary(fought: list[Duel]) -> str:
    """Cells won, tied and lost, and every lost one by name."""
    if not fought:
        return "No runs yet.\n"
    counts = Counter(duel.outcome for duel in fought)
    controls = list(dict.fromkeys(duel.control for duel in fought))
    rows = []
    for control in controls:
        mine = [duel for duel in fought if duel.control == control]
        told = Counter(duel.outcome for duel in mine)
        mean = fmean(duel.points for duel in mine)
        rows.append([control, *(str(told[outcome]) for outcome in ("won", "tied", "lost")), f"{mean:+.2f}"])
    text = (
        f"## {counts['won']} cells won, {counts['tied']} tied, {counts['lost']} lost\n\n"
        f"{OURS} against each control at budgets 0.05, 0.1 and 0.2; a difference of up to {CLOSE} points is a tie.\n\n"
        + markdown(["control", "won", "tied", "lost", "mean difference, points"], rows, numbers=True)
        + "\n"
    )
    lost = [duel for duel in fought if duel.outcome == "lost"]
    if lost:
        text += (
            "\nLost: " + "; ".join(f"{d.name} at {d.budget:g} to {d.control}, {d.points:+.2f}" for d in lost) + ".\n"
        )
    return text


def search(results: Path, *, quick: bool) -> str:
    """What changing one thing gave, in points of validation accuracy to the recipe as it is."""
    found = {name: read_cells(FOLDER, results, f"{name}-ablation", quick=quick)[0] for name in TRIED_ON}
    places = [(name, budget) for name in TRIED_ON for budget in TRIED if (AS_IT_IS, budget) in found[name]]
    if not places:
        return ""
    rows = []
    for what, why in [*((what, why) for what, (why, _) in VARIANTS.items()), *((rival, "control") for rival in RIVALS)]:
        gained = [
            found[name][what, budget].mean - found[name][AS_IT_IS, budget].mean
            if (what, budget) in found[name]
            else None
            for name, budget in places
        ]
        there = [points for points in gained if points is not None]
        told = [ABSENT if points is None else f"{points:+.2f}" for points in gained]
        rows.append([what, why, *told, f"{fmean(there):+.2f}" if there else ABSENT])
    columns = ["what", "why", *(f"{name} {budget:g}" for name, budget in places), "mean"]
    return (
        "## The search\n\nOne thing changed at a time, three seeds, points of validation accuracy to the recipe as it "
        f"is.\n\n{markdown(columns, rows)}\n"
    )


def accuracies(cells: Cells) -> str:
    """Mean and standard deviation at every budget, and the area under the frontier."""
    columns = ["accuracy, %", *(f"{budget:g}" for budget in BUDGETS), "area"]
    rows = []
    for method in AT_A_BUDGET:
        under = area(cells, method)
        mean = ABSENT if under is None else f"{under.mean:.2f}" + ("" if under.half is None else f" ± {under.half:.2f}")
        rows.append([method, *(spread(cells.get((method, budget)), budget) for budget in BUDGETS), mean])
    full = ", ".join(f"{method} {spread(cells[method, None])}" for method in AT_FULL_COST if (method, None) in cells)
    note = "The area is the mean accuracy over the logarithm of the budget, ± half a 95 % interval over seeds."
    return f"{markdown(columns, rows, numbers=True)}\n\nAt full cost: {full or ABSENT}. {note}"


def spread(cell: Cell | None, budget: float | None = None) -> str:
    """Mean ± standard deviation, and the cost where it is not what was asked for."""
    if cell is None:
        return ABSENT
    deviation = f" ± {100 * stdev(cell.accuracy):.2f}" if len(cell.accuracy) > 1 else ""
    cost = "" if cell.meets(budget) else f" at {fmean(cell.relative):.3f}"
    return f"{cell.mean:.2f}{deviation}{cost}"


def gates(cells: Cells) -> str:
    """Whether gates depend on the input, and what that is worth."""
    rows = []
    for method in ("gate", OURS, OURS_IN_CELLS):
        for budget in BUDGETS:
            cell = cells.get((method, budget))
            if cell is None:
                continue
            sites = [site for run in cell.runs for site in run["gates"]]
            lost = [100 * (run["quality"]["accuracy"] - run["accuracy_of_mean_mask"]) for run in cell.runs]
            reached = [run["macs"]["relative"] for run in cell.runs]
            share = fmean(run["macs"]["gate"] / run["macs"]["executed"] for run in cell.runs)
            of_sites = [fmean(site[key] for site in sites) for key in ("open", "variance", "always_on", "always_off")]
            apart = 100 * (max(reached) - min(reached))
            numbers = [f"{value:.2f}" for value in (apart, *of_sites, share, fmean(lost))]
            rows.append([f"{method} {budget:g}", f"{fmean(reached):.3f}", *numbers])
    columns = [
        "gates", "executed", "spread over seeds, points", "open", "variance", "always on", "always off", "gate share",
        "lost with the mean mask, points",
    ]  # fmt: skip
    return markdown(columns, rows, numbers=True) + "\n" if rows else ""
