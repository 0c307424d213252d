"""Means and spreads over seeds: the numbers every table, figure and sentence of the report shares."""

import math
import statistics
from collections.abc import Callable, Iterable
from typing import Any

from dynamicgate.lab.report.reading import Results, Run, check_results, part, parts

Spread = dict[str, Any]
Row = dict[str, Any]


def number(value: object) -> float | None:
    """A finite number as a float; anything else, a diverged NaN included, as None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if math.isfinite(value) else None


def spread(values: Iterable[float | None]) -> Spread:
    """Mean, sample standard deviation (0 for one value) and count of the values that are there."""
    present = [value for value in values if value is not None]
    return {
        "mean": statistics.fmean(present) if present else None,
        "std": statistics.stdev(present) if len(present) > 1 else 0.0,
        "n": len(present),
    }


def ratio(above: float | None, below: float | None) -> float | None:
    """The quotient, where there is one."""
    return None if above is None or not below else above / below


def accuracy_of(run: Run) -> float | None:
    """Share of test samples classified rightly."""
    return number(run["quality"].get("accuracy"))


def relative_of(run: Run) -> float | None:
    """Executed MACs as a share of the dense network's."""
    stated = number(run["macs"].get("relative"))
    computed = ratio(number(run["macs"].get("executed")), number(run["macs"].get("dense")))
    return computed if stated is None else stated


def asked_of(run: Run) -> float | None:
    """The budget this run was asked to keep, if any."""
    return number(run.get("budget"))


METRICS: dict[str, Callable[[Run], float | None]] = {
    "accuracy": accuracy_of,
    "macro_f1": lambda run: number(run["quality"].get("macro_f1")),
    "executed": lambda run: number(run["macs"].get("executed")),
    "relative": relative_of,
    "relative_zero_skip": lambda run: number(run["macs"].get("relative_zero_skip")),
    "structure_saved": lambda run: number(run["macs"].get("structure_saved")),
    "gate_saved": lambda run: number(run["macs"].get("gate_saved")),
    "gate_share": lambda run: ratio(number(run["macs"].get("gate")), number(run["macs"].get("executed"))),
    "params": lambda run: number(run["params"]),
    "seconds": lambda run: number(run["seconds"]),
}


def data_names(results: Results) -> list[str]:
    """The data sets, in the order in which they first appear."""
    return list(dict.fromkeys(run["data"] for run in results["runs"]))


def group_runs(results: Results) -> dict[tuple[str, str], list[Run]]:
    """The runs of each (data, model), both in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for data in data_names(results):
        for run in results["runs"]:
            if run["data"] == data:
                groups.setdefault((data, run["model"]), []).append(run)
    return groups


def summarise(results: Results) -> list[Row]:
    """One row per (data, model): ``{"mean", "std", "n"}`` over its runs for each of ``METRICS``.

    A row also has ``data``, ``model``, ``n`` (number of runs) and ``asked`` (the budget asked, a spread like the rest).
    """
    return [
        {
            "data": data,
            "model": model,
            "n": len(runs),
            "asked": spread(asked_of(run) for run in runs),
            **{name: spread(measure(run) for run in runs) for name, measure in METRICS.items()},
        }
        for (data, model), runs in group_runs(check_results(results)).items()
    ]


def pareto_front(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The (cost, quality) points that no other point beats, cheapest first."""
    front: list[tuple[float, float]] = []
    for cost, quality in sorted(set(points), key=lambda point: (point[0], -point[1])):
        if not front or quality > front[-1][1]:
            front.append((cost, quality))
    return front


def caveats(results: Results) -> list[str]:
    """What a reader should know before trusting the means."""
    found = []
    groups = group_runs(results)
    several = len({data for data, _ in groups}) > 1
    majority = number(part(part(results, "meta"), "data").get("majority"))
    for (data, model), runs in groups.items():
        name = f"{model} on {data}" if several else model
        seeds = [str(run["seed"]) for run in runs]
        accuracy = spread(accuracy_of(run) for run in runs)
        if accuracy["n"] < len(runs):
            found.append(
                f"{name}: {len(runs) - accuracy['n']} of {len(runs)} runs have no finite accuracy "
                "and are left out of its mean."
            )
        if len(set(seeds)) < len(seeds):
            found.append(f"{name}: some of its {len(runs)} runs share a seed, so they are not independent.")
        if len({asked_of(run) for run in runs}) > 1:
            found.append(f"{name}: its runs were asked for different budgets and are averaged together.")
        if majority is not None and not several and accuracy["mean"] is not None and accuracy["mean"] <= majority:
            found.append(f"{name}: no more accurate than always answering the most frequent class.")
    if all(len(runs) == 1 for runs in groups.values()):
        found.append("One run per model: nothing here says how much a result moves from seed to seed.")
    elif len({len(runs) for runs in groups.values()}) > 1:
        found.append("The models do not all have the same number of runs.")
    return found


def first_seed(runs: list[Run]) -> Run:
    """The run with seed 0, or the first one."""
    return next((run for run in runs if run["seed"] == 0), runs[0])


def is_gated(runs: list[Run]) -> bool:
    """Whether any of the runs reports gates."""
    return any(parts(run, "gates") for run in runs)
