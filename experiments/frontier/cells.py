"""What the runs say: accuracy at each budget, who wins where, and the area under each method's frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from dynamicgate.paper import jobs_of, load_tables
from dynamicgate.paper.results import Run, read_results
from dynamicgate.paper.statistics import Interval, interval

from .sets import BUDGETS, CONTROLS, OURS

JUDGED = (0.05, 0.1, 0.2)
CLOSE = 0.1  # points


class Cell(NamedTuple):
    """One method at one budget on one data set."""

    accuracy: Sequence[float]
    relative: Sequence[float]
    runs: Sequence[Run]

    @property
    def mean(self) -> float:
        """Mean accuracy over seeds, in points."""
        return 100.0 * fmean(self.accuracy)

    def meets(self, budget: float | None) -> bool:
        """Whether it costs what it should, to a point: some methods are too coarse for small budgets."""
        return budget is None or abs(fmean(self.relative) - budget) <= 0.01


class Duel(NamedTuple):
    """Ours against a control in one cell."""

    name: str
    budget: float
    control: str
    points: float

    @property
    def outcome(self) -> str:
        """Won or lost by more than `CLOSE` points, else tied."""
        if abs(self.points) <= CLOSE:
            return "tied"
        return "won" if self.points > 0.0 else "lost"


Cells = dict[tuple[str, float | None], Cell]


def read_cells(folder: Path, results: Path, name: str, *, quick: bool = False) -> tuple[Cells, dict[str, Any]]:
    """The cells of a data set by method and budget (None at full cost), and what its data are."""
    tables = load_tables(folder, name)
    runs, data = read_results(results, jobs_of(tables, seeds=None, quick=quick))
    found: Cells = {}
    for (_, _, model), rows in runs.items():
        reached = [run for run in rows if "unreachable" not in run]
        method, _, budget = model.rpartition(" ") if model[-1].isdigit() else (model, "", "")
        if reached:
            accuracy = [run["quality"]["accuracy"] for run in reached]
            relative = [run["macs"]["relative"] for run in reached]
            found[method, float(budget) if budget else None] = Cell(accuracy, relative, reached)
    return found, data.get(f"{name}/ours", {})


def duels(name: str, cells: Cells) -> list[Duel]:
    """Ours against every control at the judged budgets, where the control can be had at equal cost."""
    return [
        Duel(name, budget, control, cells[OURS, budget].mean - cells[control, budget].mean)
        for budget in JUDGED
        for control in CONTROLS
        if (OURS, budget) in cells and (control, budget) in cells and cells[control, budget].meets(budget)
    ]


def area(cells: Cells, method: str) -> Interval | None:
    """Mean accuracy over the logarithm of the budget, in points, with its interval over seeds; None with a gap."""
    row = [cells.get((method, budget)) for budget in BUDGETS]
    found = [cell for cell in row if cell is not None]
    seeds = min((len(cell.accuracy) for cell in found), default=0)
    if len(found) < len(BUDGETS) or not seeds:
        return None
    logs = [math.log(budget) for budget in BUDGETS]

    def of(seed: int) -> float:
        heights = [100.0 * cell.accuracy[seed] for cell in found]
        steps = zip(pairwise(logs), pairwise(heights), strict=True)
        return sum((b - a) * (low + high) / 2 for (a, b), (low, high) in steps) / (logs[-1] - logs[0])

    return interval([of(seed) for seed in range(seeds)])
