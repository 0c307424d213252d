"""Means and standard deviations over seeds: the numbers that every table, figure and sentence of the report shares."""

import statistics
from collections.abc import Iterable
from typing import Any

from dynamicgate.lab.report.reading import Results, Run, check_results, gates_in
from dynamicgate.lab.report.run_metrics import METRICS, target_of

Spread = dict[str, Any]
Row = dict[str, Any]


def spread(values: Iterable[float | None]) -> Spread:
    """Mean, sample standard deviation (0 for one value) and count of the values that are not None."""
    present = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(present) if present else None,
        "std": statistics.stdev(present) if len(present) > 1 else 0.0,
        "n": len(present),
    }


def dataset_names(results: Results) -> list[str]:
    """The datasets, in the order in which they first appear."""
    return list(dict.fromkeys(run["data"] for run in results["runs"]))


def has_several_datasets(results: Results) -> bool:
    """Whether the runs are on more than one dataset."""
    return len(dataset_names(results)) > 1


def group_runs(results: Results) -> dict[tuple[str, str], list[Run]]:
    """The runs of each (dataset, model), both in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for dataset in dataset_names(results):
        for run in results["runs"]:
            if run["data"] == dataset:
                groups.setdefault((dataset, run["model"]), []).append(run)
    return groups


def summarise(results: Results) -> list[Row]:
    """One row per (dataset, model): ``{"mean", "std", "n"}`` over its runs for each of ``METRICS``.

    A row also has ``data``, ``model``, ``n`` (number of runs) and ``target`` (the budget, with mean and std too).
    """
    return [
        {
            "data": dataset,
            "model": model,
            "n": len(runs),
            "target": spread(target_of(run) for run in runs),
            **{name: spread(read(run) for run in runs) for name, read in METRICS.items()},
        }
        for (dataset, model), runs in group_runs(check_results(results)).items()
    ]


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (cost, quality) points that no other point beats, cheapest first."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


def first_seed(runs: list[Run]) -> Run:
    """The run with seed 0, or the first one."""
    return next((run for run in runs if run["seed"] == 0), runs[0])


def is_gated(runs: list[Run]) -> bool:
    """Whether any of the runs reports gates."""
    return any(gates_in(run) for run in runs)
