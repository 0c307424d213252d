"""The search for the recipe as tables, one for each budget: what was tried, why, and what it gave."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from dynamicgate.lab.report.markdown_tables import markdown
from dynamicgate.lab.report.number_format import ABSENT

from .ablation import AS_IT_IS, BUDGETS, RIVALS, TRIED_ON, VARIANTS
from .cells import Cells, read_cells

TITLE = """\
## The search

One thing changed at a time, three seeds, half as many epochs, points of validation accuracy to where this part of the
search began: gates that take 5 % of the budget and leave 85 % open at every budget, layers as wide as asked for,
connections from dense, by erk. The mean is over the data sets where a change was tried. What came of it: below a budget
of 0.1 nothing beat that start on all data sets; from 0.1 on lighter gates on wider layers did, and became the default.
To be sparse sooner, or to start with half of the connections, gains on PBMC 3k, whose dense network learns by heart,
and loses more on Speech: how long to stay dense is not the same for all data, and no default is right for both.
"""


def search(folder: Path, results: Path, *, quick: bool) -> str:
    """Everything that was tried."""
    found = {name: read_cells(folder, results, f"{name}-ablation", quick=quick)[0] for name in TRIED_ON}
    tables = [table for budget in BUDGETS if (table := at(budget, found))]
    return "\n".join([TITLE, *tables]) if tables else ""


def at(budget: float, found: dict[str, Cells]) -> str:
    """The table of one budget; empty where nothing was tried."""
    names = [name for name, cells in found.items() if (AS_IT_IS, budget) in cells]
    rows = []
    for what, why in [*((what, why) for what, (why, _) in VARIANTS.items()), *((rival, "control") for rival in RIVALS)]:
        if what == AS_IT_IS or not any((what, budget) in found[name] for name in names):
            continue
        gained = {
            name: found[name][what, budget].mean - found[name][AS_IT_IS, budget].mean
            for name in names
            if (what, budget) in found[name]
        }
        told = (f"{gained[name]:+.2f}" if name in gained else ABSENT for name in names)
        rows.append([what, why, *told, f"{fmean(gained.values()):+.2f}"])
    return f"{markdown([f'at {budget:g}', 'why', *names, 'mean'], rows)}\n" if rows else ""
