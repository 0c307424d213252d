"""What the runs say: accuracy at each budget and latency, who wins where, and the area under each method's frontier."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.runner.statistics import Interval, interval
from experiments.frontier.datasets import BUDGETS, CONTROLS, OURS, OURS_IN_TILES, method_of

COMPARED_AT = (0.05, 0.1, 0.2)  # budgets
TIE = 0.1  # points
BATCHES = (1, 256)  # that are timed


class Entry(NamedTuple):
    """One method at one budget on one dataset."""

    accuracy: Sequence[float]
    relative: Sequence[float]
    runs: Sequence[Run]

    @property
    def mean(self) -> float:
        """Mean accuracy over seeds, in points."""
        return 100.0 * fmean(self.accuracy)

    def meets(self, budget: float | None) -> bool:
        """Whether its cost is within a point of the budget: some methods are too coarse for small budgets."""
        return budget is None or abs(fmean(self.relative) - budget) <= 0.01


class Comparison(NamedTuple):
    """Ours against a control on one dataset at one budget.

    half: of the 95 % interval over seeds that both have. faster: no model of the control is as fast; points are then
    relative to its fastest.
    """

    name: str
    budget: float
    control: str
    points: float
    faster: bool = False
    half: float | None = None

    @property
    def outcome(self) -> str:
        """Won or lost by more than `TIE` points, else tied; won where no model of the control is as fast."""
        if self.faster:
            return "won"
        if abs(self.points) <= TIE:
            return "tied"
        return "won" if self.points > 0.0 else "lost"


Entries = dict[tuple[str, float | None], Entry]
"""By method and budget, None at full cost."""
Latencies = dict[tuple[str, float | None], dict[str, Any]]
"""By method and budget: the times of its model by batch size."""


def read_entries(experiment: Experiment, name: str) -> tuple[Entries, dict[str, Any]]:
    """The entries of a table, and what its data are."""
    runs, data = read_results(experiment.results, experiment.jobs([experiment.table(name)]))
    return entries_of(run for rows in runs.values() for run in rows), data.get(name, {})


def entries_of(runs: Iterable[Run]) -> Entries:
    """Runs by method and budget, without those at a budget that their method cannot meet."""
    found: dict[tuple[str, float | None], list[Run]] = {}
    for run in runs:
        if "unreachable" not in run:
            found.setdefault(method_of(run["model"]), []).append(run)
    return {key: entry_of(rows) for key, rows in found.items()}


def entry_of(runs: Sequence[Run]) -> Entry:
    """The runs of one method at one budget."""
    return Entry([run["quality"]["accuracy"] for run in runs], [run["macs"]["relative"] for run in runs], runs)


def comparisons(name: str, entries: Entries, controls: Sequence[str] = CONTROLS, ours: str = OURS) -> list[Comparison]:
    """Ours against every control at the budgets of `COMPARED_AT`, where the control meets the budget."""
    return [
        compare_entries(name, budget, control, entries[ours, budget], entries[control, budget])
        for budget in COMPARED_AT
        for control in controls
        if (ours, budget) in entries and (control, budget) in entries and entries[control, budget].meets(budget)
    ]


def compare_entries(name: str, budget: float, control: str, ours: Entry, theirs: Entry) -> Comparison:
    """One comparison, paired by seed."""
    reached = {run["seed"]: run["quality"]["accuracy"] for run in theirs.runs}
    apart = [100.0 * (run["quality"]["accuracy"] - reached[run["seed"]]) for run in ours.runs if run["seed"] in reached]
    half = interval(apart).half if apart else None
    return Comparison(name, budget, control, ours.mean - theirs.mean, half=half)


def latency_comparisons(
    name: str, entries: Entries, latencies: Latencies, batch: int, ours: str = OURS_IN_TILES
) -> list[Comparison]:
    """What ours reaches at the latencies of its models at `COMPARED_AT`, against what every control reaches there."""
    found = []
    for budget in COMPARED_AT:
        if (ours, budget) not in latencies or (ours, budget) not in entries:
            continue
        ratio = latencies[ours, budget]["batches"][str(batch)]["ratio"]
        mine = accuracy_at(timed(entries, latencies, ours, batch), ratio)
        for control in CONTROLS:
            points = timed(entries, latencies, control, batch)
            if points:
                faster = ratio < points[0][0]
                found.append(Comparison(name, budget, control, mine - accuracy_at(points, ratio), faster))
    return found


def timed(entries: Entries, latencies: Latencies, method: str, batch: int) -> list[tuple[float, float]]:
    """Latency relative to dense and accuracy in points of the models of a method, the fastest first."""
    return sorted(
        (latencies[method, budget]["batches"][str(batch)]["ratio"], entries[method, budget].mean)
        for budget in BUDGETS
        if (method, budget) in latencies and (method, budget) in entries
    )


def accuracy_at(points: Sequence[tuple[float, float]], ratio: float) -> float:
    """The accuracy that a method reaches at a latency: interpolated between its models over the logarithm of the
    latency, beyond them the nearest. A slower model may be replaced by any faster one, so accuracy never falls."""
    best = list(accumulate((height for _, height in points), max))
    return float(np.interp(math.log(ratio), [math.log(latency) for latency, _ in points], best))


def area(entries: Entries, method: str) -> Interval | None:
    """Mean accuracy over the logarithm of the budget, in points, with its interval over seeds; None where a budget is
    missing."""
    row = [entries.get((method, budget)) for budget in BUDGETS]
    found = [entry for entry in row if entry is not None]
    seeds = min((len(entry.accuracy) for entry in found), default=0)
    if len(found) < len(BUDGETS) or not seeds:
        return None
    logs = [math.log(budget) for budget in BUDGETS]

    def of(seed: int) -> float:
        heights = [100.0 * entry.accuracy[seed] for entry in found]
        steps = zip(pairwise(logs), pairwise(heights), strict=True)
        return sum((b - a) * (low + high) / 2 for (a, b), (low, high) in steps) / (logs[-1] - logs[0])

    return interval([of(seed) for seed in range(seeds)])
