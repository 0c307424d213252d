"""The stored runs of a table as its pages read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, stdev

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.results import read_results
from experiments.language.tables import MORE_SEEDS

Rows = dict[str, list[Run]]
"""Runs by model, in the order of the seeds."""

MISSING = "No runs yet."


def read_rows(experiment: Experiment, table: Table) -> Rows:
    """The stored runs of a table, also those of seeds that the table no longer asks for: none is left out."""
    runs, _ = read_results(experiment.results, experiment.jobs([replace(table, seeds=MORE_SEEDS, own_seeds={})]))
    return {model: found for (_, model), found in runs.items()}


def finished(rows: Rows) -> Rows:
    """The runs that came to a result, without those whose loss became no number."""
    kept = {model: [run for run in runs if "diverged" not in run] for model, runs in rows.items()}
    return {model: runs for model, runs in kept.items() if runs}


def bits(run: Run) -> float:
    """Bits per byte on the last text that the run was measured on: test text, or validation text where it chooses."""
    return float(run["quality"]["bits_per_byte"])


def last_part(run: Run) -> str:
    """The part of the text that the run was measured on last."""
    return "test" if "test" in run["quality"] else "valid"


def mean_bits(runs: Sequence[Run]) -> float:
    """The mean over seeds."""
    return fmean(map(bits, runs))


def spread_on_valid(runs: Sequence[Run]) -> float | None:
    """The standard deviation over seeds of the bits per byte of validation text; None for one seed."""
    found = [float(run["quality"]["valid"]["bits_per_byte"]) for run in runs]
    return stdev(found) if len(found) > 1 else None


def counted(rows: Rows, model: str) -> str:
    """How many seeds a model has, and how many of them diverged."""
    lost = sum("diverged" in run for run in rows[model])
    return str(len(rows[model]) - lost) + (f", {lost} diverged" if lost else "")


def said_missing(table: Table, rows: Rows, most: int | None = None) -> str:
    """Which models of a table have no run yet, the first `most` by name; nothing where all have one."""
    missing = [model for model in table.models if model not in rows]
    named = missing[:most]
    more = [f"{len(missing) - len(named)} more"] if len(named) < len(missing) else []
    return f"No run yet: {'; '.join(named + more)}." if missing and rows else ""
