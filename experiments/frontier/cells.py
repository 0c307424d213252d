"""What the runs say: accuracy at each budget and latency, who wins where, and the area under each method's frontier."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import jobs_of, load_tables
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.runner.statistics import Interval, interval

from .sets import BUDGETS, CONTROLS, OURS, OURS_IN_CELLS

JUDGED = (0.05, 0.1, 0.2)
CLOSE = 0.1  # points
BATCHES = (1, 256)  # on the clock


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
    """Ours against a control in one cell. faster: no model of the control is as fast; points to its fastest."""

    name: str
    budget: float
    control: str
    points: float
    faster: bool = False
    half: float | None = None  # of a 95 % interval over seeds that both have

    @property
    def outcome(self) -> str:
        """Won or lost by more than `CLOSE` points, else tied; a control that is not as fast has no answer."""
        if self.faster:
            return "won"
        if abs(self.points) <= CLOSE:
            return "tied"
        return "won" if self.points > 0.0 else "lost"


Cells = dict[tuple[str, float | None], Cell]
Clock = dict[tuple[str, float | None], dict[str, Any]]


def read_cells(folder: Path, results: Path, name: str, *, quick: bool = False) -> tuple[Cells, dict[str, Any]]:
    """The cells of a data set by method and budget (None at full cost), and what its data are."""
    tables = load_tables(folder, name)
    runs, data = read_results(results, jobs_of(tables, seeds=None, quick=quick))
    found: Cells = {}
    for (_, _, model), rows in runs.items():
        reached = [run for run in rows if "unreachable" not in run]
        if reached:
            found[method_of(model)] = cell_of(reached)
    return found, data.get(f"{name}/ours", {})


def cell_of(runs: Sequence[Run]) -> Cell:
    """The runs of one method."""
    return Cell([run["quality"]["accuracy"] for run in runs], [run["macs"]["relative"] for run in runs], runs)


def read_transfer(folder: Path) -> Cells:
    """The cells of experiments/transfer.py, as far as it has been run."""
    found: Cells = {}
    for budget in JUDGED:
        path = folder / f"transfer-{budget:g}.json"
        runs = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
        for model in dict.fromkeys(run["model"] for run in runs):
            found[model, budget] = cell_of([run for run in runs if run["model"] == model])
    return found


def method_of(model: str) -> tuple[str, float | None]:
    """Method and budget of a model of a table, None at full cost."""
    method, _, budget = model.rpartition(" ") if model[-1].isdigit() else (model, "", "")
    return method, float(budget) if budget else None


def clock_path(results: Path, name: str) -> Path:
    """The file with the times of a data set."""
    return results / "clock" / f"{name}.json"


def read_clock(folder: Path, results: Path, name: str, *, quick: bool = False) -> Clock:
    """The times of a data set by method and budget; models that are no longer asked for like this are left out."""
    path = clock_path(results, name)
    rows = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    asked = {job.hash for job in jobs_of(load_tables(folder, name), seeds=1, quick=quick)}
    return {(row["method"], row["budget"]): row for row in rows if row["hash"] in asked}


def duels(name: str, cells: Cells, controls: Sequence[str] = CONTROLS) -> list[Duel]:
    """Ours against every control at the judged budgets, where the control can be had at equal cost."""
    return [
        duel(name, budget, control, cells[OURS, budget], cells[control, budget])
        for budget in JUDGED
        for control in controls
        if (OURS, budget) in cells and (control, budget) in cells and cells[control, budget].meets(budget)
    ]


def duel(name: str, budget: float, control: str, ours: Cell, theirs: Cell) -> Duel:
    """One cell, paired by seed."""
    reached = {run["seed"]: run["quality"]["accuracy"] for run in theirs.runs}
    apart = [100.0 * (run["quality"]["accuracy"] - reached[run["seed"]]) for run in ours.runs if run["seed"] in reached]
    half = interval(apart).half if apart else None
    return Duel(name, budget, control, ours.mean - theirs.mean, half=half)


def clock_duels(name: str, cells: Cells, clock: Clock, batch: int, ours: str = OURS_IN_CELLS) -> list[Duel]:
    """What ours reaches at the latencies of the judged budgets, against what every control reaches there."""
    found = []
    for budget in JUDGED:
        if (ours, budget) not in clock or (ours, budget) not in cells:
            continue
        ratio = clock[ours, budget]["batches"][str(batch)]["ratio"]
        mine = accuracy_at(timed(cells, clock, ours, batch), ratio)
        for control in CONTROLS:
            points = timed(cells, clock, control, batch)
            if points:
                faster = ratio < points[0][0]
                found.append(Duel(name, budget, control, mine - accuracy_at(points, ratio), faster))
    return found


def timed(cells: Cells, clock: Clock, method: str, batch: int) -> list[tuple[float, float]]:
    """Latency relative to dense and accuracy in points of the models of a method, the fastest first."""
    return sorted(
        (clock[method, budget]["batches"][str(batch)]["ratio"], cells[method, budget].mean)
        for budget in BUDGETS
        if (method, budget) in clock and (method, budget) in cells
    )


def accuracy_at(points: Sequence[tuple[float, float]], ratio: float) -> float:
    """The accuracy that a method reaches at a latency: between its models a line over the logarithm of the latency,
    beyond them the nearest. Who is slower may take any faster model, so accuracy never falls."""
    best = list(accumulate((height for _, height in points), max))
    return float(np.interp(math.log(ratio), [math.log(latency) for latency, _ in points], best))


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
