"""What the runs say: accuracy at each budget, paired tests over the cells of each family, areas under the frontier."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any, NamedTuple

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import Interval, holm, interval, paired, t_quantile
from experiments.frontier.datasets import DATASETS, method_of
from experiments.frontier.methods import ANY_SPEED, BUDGETS, CONTROLS, NO_GATES, OURS, WITHOUT_GATES
from experiments.frontier.oracle import ORACLE
from experiments.frontier.tables import Chosen, kind_of

CELLS = len(DATASETS) * len(BUDGETS)
SIGNIFICANT = 0.05
WITHIN = 0.01  # of a budget


class Entry(NamedTuple):
    """The runs of one method at one budget on one dataset."""

    runs: Sequence[Run]

    @property
    def by_seed(self) -> dict[int, float]:
        """Accuracy in points."""
        return {run["seed"]: 100.0 * run["quality"]["accuracy"] for run in self.runs}

    @property
    def accuracy(self) -> Interval:
        """Mean accuracy over seeds, in points."""
        return interval(list(self.by_seed.values()))

    @property
    def relative(self) -> float:
        """Mean cost relative to dense."""
        return fmean(run["macs"]["relative"] for run in self.runs)

    def meets(self, budget: float | None) -> bool:
        """Whether its cost is within a point of the budget: some methods are too coarse for small budgets."""
        return budget is None or abs(self.relative - budget) <= WITHIN


Entries = dict[tuple[str, float | None], Entry]
"""By method and budget, None at full cost."""


class Cell(NamedTuple):
    """One method against another on one dataset at one budget.

    difference: of accuracy, in points, over the seeds that both have. half: of its 95 % interval. p_holm: corrected
    over the cells of a family. same: both are the same model.
    """

    name: str
    budget: float
    ours: str
    control: str
    difference: float
    half: float | None
    p: float | None
    n: int
    same: bool = False
    p_holm: float = 1.0

    @property
    def outcome(self) -> str:
        """Won or lost where the corrected test says so, else tied."""
        if self.same or self.p_holm >= SIGNIFICANT:
            return "tied"
        return "won" if self.difference > 0.0 else "lost"


def read_entries(experiment: Experiment, name: str, chosen: Chosen) -> tuple[Entries, dict[str, Any]]:
    """The entries of a dataset, and what its data are. Without gates, ours has the runs of the recipe without them."""
    runs, data = read_results(experiment.results, experiment.jobs([experiment.table(name)]))
    entries = entries_of(run for rows in runs.values() for run in rows)
    for method, without in WITHOUT_GATES.items():
        for budget in BUDGETS:
            if has_no_gates(chosen, name, method, budget) and (without, budget) in entries:
                entries[method, budget] = entries[without, budget]
    return entries, data.get(name, {})


def read_oracles(experiment: Experiment) -> dict[str, Entries]:
    """The entries of the oracle, of the datasets that have any."""
    found = {}
    for name in DATASETS:
        runs, _ = read_results(experiment.results, experiment.jobs([experiment.table(f"{name}-{ORACLE}")]))
        if entries := entries_of(run for rows in runs.values() for run in rows):
            found[name] = entries
    return found


def ask_the_clock(entries: Entries, refused: Collection[tuple[str, float]]) -> Entries:
    """The entries with ours as the recipe without gates where the clock refuses its gates. Its runs with them stay,
    under another name."""
    asked = dict(entries)
    for method, budget in refused:
        without = WITHOUT_GATES[method]
        if (method, budget) in entries and (without, budget) in entries:
            asked[method + ANY_SPEED, budget] = entries[method, budget]
            asked[method, budget] = entries[without, budget]
    return asked


def has_no_gates(chosen: Chosen, name: str, method: str, budget: float) -> bool:
    """Whether ours was chosen to be the recipe without gates."""
    return kind_of(chosen.get(name, {}), method, budget) == NO_GATES


def entries_of(runs: Iterable[Run]) -> Entries:
    """Runs by method and budget, without those at a budget that their method cannot meet."""
    found: dict[tuple[str, float | None], list[Run]] = {}
    for run in runs:
        if "unreachable" not in run:
            found.setdefault(method_of(run["model"]), []).append(run)
    return {key: Entry(rows) for key, rows in found.items()}


def compare(name: str, budget: float, entries: Entries, ours: str, control: str) -> Cell | None:
    """One cell, not yet corrected; None where runs are missing."""
    if (ours, budget) not in entries or (control, budget) not in entries:
        return None
    mine, theirs = entries[ours, budget], entries[control, budget]
    a, b = mine.by_seed, theirs.by_seed
    seeds = sorted(a.keys() & b.keys())
    if not seeds:
        return None
    apart = [a[seed] - b[seed] for seed in seeds]
    test = paired(apart, [0.0] * len(apart))
    same = mine.runs is theirs.runs
    return Cell(name, budget, ours, control, test.difference, interval(apart).half, test.p, test.n, same)


def best_control(entries: Entries, budget: float) -> str | None:
    """The control with the highest mean accuracy on test rows that meets the budget."""
    means = {
        control: entries[control, budget].accuracy.mean
        for control in CONTROLS
        if (control, budget) in entries and entries[control, budget].meets(budget)
    }
    return max(means, key=lambda control: means[control]) if means else None


def against(found: Mapping[str, Entries], ours: str, control: str) -> list[Cell]:
    """A family: ours against one control in every cell in which the control meets the budget."""
    cells = [
        compare(name, budget, entries, ours, control)
        for name, entries in found.items()
        for budget in BUDGETS
        if (control, budget) in entries and entries[control, budget].meets(budget)
    ]
    return corrected(cells)


def against_best(found: Mapping[str, Entries], ours: str = OURS) -> list[Cell]:
    """A family: ours against the best control of every cell."""
    return corrected(
        compare(name, budget, entries, ours, control)
        for name, entries in found.items()
        for budget in BUDGETS
        if (control := best_control(entries, budget))
    )


def corrected(cells: Iterable[Cell | None]) -> list[Cell]:
    """The cells with p-values corrected by Holm; cells that are still to be run count as well, with a p-value of 1."""
    given = [cell for cell in cells if cell is not None]
    p_values = [1.0 if cell.same or cell.p is None else cell.p for cell in given]
    missing = [1.0] * max(0, CELLS - len(given))
    return [cell._replace(p_holm=p) for cell, p in zip(given, holm([*p_values, *missing])[: len(given)], strict=True)]


def mean_difference(found: Mapping[str, Entries], cells: Sequence[Cell]) -> tuple[float, float | None]:
    """The mean over cells, and half of its 95 % interval over seeds. Cells of a dataset share seeds, so they are
    averaged for each seed first; datasets are independent."""
    mean, errors = 0.0, list[tuple[float, int]]()
    for name in dict.fromkeys(cell.name for cell in cells):
        rows = []
        for cell in (cell for cell in cells if cell.name == name):
            a, b = (found[name][method, cell.budget].by_seed for method in (cell.ours, cell.control))
            rows.append({seed: a[seed] - b[seed] for seed in a.keys() & b.keys()})
        seeds = set.intersection(*(set(row) for row in rows))
        values = [fmean(row[seed] for row in rows) for seed in sorted(seeds)] or [fmean(rows[0].values())]
        weight = len(rows) / len(cells)
        one = interval(values)
        mean += weight * one.mean
        errors.append((weight**2 * one.std**2 / one.n, one.n - 1))
    if any(degrees == 0 for _, degrees in errors):
        return mean, None
    variance = sum(error for error, _ in errors)
    if variance == 0.0:
        return mean, 0.0
    degrees = variance**2 / sum(error**2 / own for error, own in errors)  # Welch and Satterthwaite
    return mean, t_quantile(0.975, max(1, int(degrees))) * math.sqrt(variance)


def area(entries: Entries, method: str) -> Interval | None:
    """Mean accuracy over the logarithm of the budget, in points, with its interval over seeds; None where a budget is
    missing."""
    rows = [entries[method, budget].by_seed for budget in BUDGETS if (method, budget) in entries]
    if len(rows) < len(BUDGETS) or not (seeds := sorted(set.intersection(*(set(row) for row in rows)))):
        return None
    logs = [math.log(budget) for budget in BUDGETS]

    def of(seed: int) -> float:
        steps = zip(pairwise(logs), pairwise(row[seed] for row in rows), strict=True)
        return sum((b - a) * (low + high) / 2 for (a, b), (low, high) in steps) / (logs[-1] - logs[0])

    return interval([of(seed) for seed in seeds])
