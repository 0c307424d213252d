"""How measures of runs are shown on pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dynamicgate.lab.methods.stream_runs import beside_dense
from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.docs_pages import ABSENT
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import interval

Rows = Mapping[str, Sequence[Run]]
"""The runs of each model of a table, in the order of the seeds."""


def rows_of(experiment: Experiment, name: str) -> Rows:
    """The stored runs of a table. MACs relate to the dense network that the table trains without anything else, also
    those of runs that were stored beside a body of their own."""
    table = experiment.table(name)
    runs, data = read_results(experiment.results, experiment.jobs([table]))
    hidden = usual_hidden(table, quick=experiment.quick)
    if hidden is None or not runs:
        return {model: found for (_, model), found in runs.items()}
    sizes = (data[name]["features"], *hidden, data[name]["classes"])
    return {model: [{**run, "macs": beside_dense(run["macs"], sizes)} for run in found]
            for (_, model), found in runs.items()}  # fmt: skip


def usual_hidden(table: Table, *, quick: bool) -> Sequence[int] | None:
    """The widths of a table's plain dense network; None where it has none."""
    plain = [one["hidden"] for one in table.models.values() if one.get("method") in ("naive", "dense")]
    return table.quick.get("hidden", plain[0]) if quick and plain else next(iter(plain), None)


def told(runs: Sequence[Run]) -> str:
    """What is known of the stream in training."""
    settings = runs[0]["settings"]
    if settings.get("method") == "joint":
        return "all rows at once"
    return str(runs[0].get("told", {}).get("known") or settings.get("known", "boundaries"))


def seconds(runs: Sequence[Run]) -> str:
    """How long a run took."""
    return f"{fmean(run['seconds'] for run in runs):,.0f}"


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


def kept(runs: Sequence[Run]) -> str:
    """Bytes that are kept between tasks beside the model; joint training has every row at hand."""
    return "all rows" if runs[0]["settings"].get("method") == "joint" else mean(runs, "bytes")


def macs(runs: Sequence[Run]) -> str:
    """Executed MACs of a row."""
    return f"{fmean(run['macs']['executed'] for run in runs):,.0f}"


def lost(runs: Sequence[Run]) -> str:
    """Forgetting; of streams of which not all was measured, minus backward transfer, in which older runs were stored as
    forgetting."""
    known = [run["quality"].get("forgetting") for run in runs]
    values = [
        100 * (-run["quality"]["bwt"] if value is None else value) for run, value in zip(runs, known, strict=True)
    ]
    return plus_minus(interval(values))


def with_prototypes(runs: Sequence[Run]) -> str:
    """Non-zero weights and what prototypes hold; a number of theirs has 4 bytes."""
    return f"{fmean(run['params'] + run.get('bytes', 0) // 4 for run in runs):,.0f}"


def on_task(runs: Sequence[Run], task: int) -> tuple[str, str]:
    """Accuracy and balanced accuracy on a task at the end; balanced is missing where only the matrix was stored."""
    balanced = [100 * run["quality"]["by_task"][task]["balanced"] for run in runs if "by_task" in run["quality"]]
    reached = [100 * run["quality"]["retention"]["matrix"][-1][task] for run in runs]
    return plus_minus(interval(reached)), plus_minus(interval(balanced)) if balanced else ABSENT
