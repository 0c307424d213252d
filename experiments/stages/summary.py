"""What the runs say: where stages are used, what they gain over the recipe without them, and against their controls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import Paired, holm, paired
from experiments.frontier.datasets import DATASETS
from experiments.stages.tables import BUDGETS, CASCADE, SINGLE, STAGED, budgets_of, model_name
from experiments.stages.train import CURVE_MODEL

Key = tuple[str, float]
"""Dataset and budget."""


class Comparison(NamedTuple):
    """Runs at one budget of one dataset, seed by seed."""

    single: Sequence[Run]
    staged: Sequence[Run]
    cascade: Sequence[Run]

    @property
    def used(self) -> bool:
        """Whether stages are used: validation rows must gain more than the standard error of the gain."""
        gains = [100.0 * (s["valid"]["accuracy"] - o["valid"]["accuracy"]) for s, o in self._pairs()]
        return fmean(gains) > stdev(gains) / math.sqrt(len(gains))

    @property
    def gains(self) -> list[float]:
        """Points on test rows with stages where they are used, minus those without, for each seed."""
        return [ours - o for ours, o in zip(points(self.ours), points(self.single), strict=True)]

    @property
    def ours(self) -> Sequence[Run]:
        """What the recipe gives: stages where they are used."""
        return self.staged if self.used else self.single

    @property
    def against_cascade(self) -> Paired:
        """Stages minus the cascade, on test rows."""
        return paired(points(self.staged), points(self.cascade))

    @property
    def against_random(self) -> Paired:
        """Stages minus the same stops dealt at random, on test rows."""
        return paired(points(self.staged), [100.0 * run["stages"]["random"] for run in self.staged])

    @property
    def correlations(self) -> list[float]:
        """Of the cost of an input with being answered wrongly."""
        return [run["stages"]["cost_error"] for run in self.staged if run["stages"]["cost_error"] is not None]

    def _pairs(self) -> list[tuple[Run, Run]]:
        return list(zip(self.staged, self.single, strict=True))


def points(runs: Sequence[Run]) -> list[float]:
    """Accuracy on test rows, in points."""
    return [100.0 * run["quality"]["accuracy"] for run in runs]


def costs(runs: Sequence[Run]) -> list[float]:
    """Executed MACs relative to dense."""
    return [run["macs"]["relative"] for run in runs]


def read_comparisons(experiment: Experiment, pattern: str = "") -> dict[Key, Comparison]:
    """All budgets of all datasets of which every seed of every model with masks of this pattern is there."""
    found: dict[Key, Comparison] = {}
    for name in DATASETS:
        table = experiment.table(f"{name}-{pattern}" if pattern else name)
        runs, _ = read_results(experiment.results, experiment.jobs([table]))
        for budget in sorted(budgets_of(name, pattern)):
            asked = [model_name(kind, budget, pattern) for kind in (SINGLE, STAGED, CASCADE)]
            kinds = [runs.get((table.name, model), []) for model in asked]
            if all(len(kind) == len(table.seeds) for kind in kinds) and not any(
                "unreachable" in run for kind in kinds for run in kind
            ):
                found[name, budget] = Comparison(*kinds)
    return found


class Primary(NamedTuple):
    """The primary comparison of a dataset."""

    name: str
    difference: float
    p: float
    corrected: float
    budgets: list[float]
    """At which stages are used."""
    against_cascade: Paired
    """The recipe, with stages where they are used, minus the cascade, averaged over the budgets."""


def primary(found: dict[Key, Comparison]) -> list[Primary]:
    """The gain by stages averaged over the budgets of each dataset, tested over seeds and corrected by Holm."""
    rows: list[tuple[str, Paired, list[float], Paired]] = []
    for name in DATASETS:
        of_name = {budget: found[name, budget] for budget in BUDGETS if (name, budget) in found}
        if len(of_name) < len(BUDGETS):
            continue
        each = of_name.values()
        gained = paired(_over_budgets(c.gains for c in each), [0.0] * len(next(iter(each)).single))
        cascade = paired(_over_budgets(points(c.ours) for c in each), _over_budgets(points(c.cascade) for c in each))
        rows.append((name, gained, [b for b, c in of_name.items() if c.used], cascade))
    p_values = [1.0 if test.p is None else test.p for _, test, _, _ in rows]
    missing = [1.0] * (len(DATASETS) - len(rows))  # datasets that are still to be run count as well
    corrected = holm([*p_values, *missing])
    return [
        Primary(name, test.difference, p, p_holm, used, cascade)
        for (name, test, used, cascade), p, p_holm in zip(rows, p_values, corrected, strict=False)
    ]


def _over_budgets(values: Iterable[Sequence[float]]) -> list[float]:
    """The mean over budgets for each seed."""
    return [fmean(of_seed) for of_seed in zip(*values, strict=True)]


def put_at(experiment: Experiment) -> list[dict[str, Any]]:
    """One model put at several budgets, and the models trained for them: mean accuracy over seeds, in points."""
    name, model = CURVE_MODEL
    runs, _ = read_results(experiment.results, experiment.jobs([experiment.table(name)]))
    rows = []
    one = runs.get((name, model), [])
    for budget in one[0].get("put_at", {}) if one else {}:
        trained = runs.get((name, f"{STAGED} {budget}"), [])
        if len(trained) != len(one):
            continue
        put = [run["put_at"][budget] for run in one]
        rows.append(
            {
                "budget": float(budget),
                "put": 100.0 * fmean(p["accuracy"] for p in put),
                "put_cost": fmean(p["relative"] for p in put),
                "trained": fmean(points(trained)),
                "trained_cost": fmean(costs(trained)),
            }
        )
    return rows
