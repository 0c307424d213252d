"""How measures of runs are shown on pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import interval

Rows = Mapping[str, Sequence[Run]]
"""The runs of each model of a table, in the order of the seeds."""


def rows_of(experiment: Experiment, name: str) -> Rows:
    """The stored runs of a table."""
    runs, _ = read_results(experiment.results, experiment.jobs([experiment.table(name)]))
    return {model: found for (_, model), found in runs.items()}


def percent(runs: Sequence[Run], name: str) -> str:
    """A measure over seeds, in points."""
    found = [run["quality"].get(name) for run in runs]
    values = [100 * value for value in found if isinstance(value, float) and value == value]
    return plus_minus(interval(values)) if values else ABSENT


def plus_minus(found: Any) -> str:
    """A mean with half of its interval."""
    return f"{found.mean:.2f}" if found.half is None else f"{found.mean:.2f} ± {found.half:.2f}"


def relative(runs: Sequence[Run], name: str = "relative") -> str:
    """Executed MACs relative to those of a dense model."""
    found = [run["macs"][name] for run in runs if run["macs"]]
    return f"{fmean(found):.4f}" if found else ABSENT


def mean(runs: Sequence[Run], name: str) -> str:
    """The mean of a number of things that runs count, such as bytes."""
    return f"{fmean(run.get(name, 0) for run in runs):,.0f}"


def macs(runs: Sequence[Run]) -> str:
    """Executed MACs of a row."""
    return f"{fmean(run['macs']['executed'] for run in runs):,.0f}"
