"""Which settings are tried for each row of a table, and which of them the stored runs choose.

A grid that is not stored whole chooses nothing, so that tables ask for what they asked for before; once it is, tables
ask for what it has found, and their earlier runs are stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any, NamedTuple

from dynamicgate.lab.result_file import Run, read_runs
from dynamicgate.lab.runner import Job, Table
from dynamicgate.lab.runner.results import table_path
from experiments import ROOT
from experiments.continual.settings import LEARNERS, OURS, Models

RESULTS = ROOT / "experiments" / "results" / "continual"
CHANCE = 2e-3  # two seeds and 5,000 validation rows of each task do not tell a fifth of a point apart
LR = 1e-3  # of runs whose names do not say it
Value = float | None


class Point(NamedTuple):
    """What is tried: a strength, for methods that have one, and a learning rate."""

    strength: Value
    lr: float


Grids = Mapping[str, Sequence[Point]]
"""By row of a table."""


def points(rates: Sequence[float], strengths: Sequence[float] = ()) -> list[Point]:
    """All of these together."""
    return [Point(strength, lr) for strength, lr in product(strengths or (None,), rates)]


def name_of(row: str, point: Point) -> str:
    """Of the run."""
    if point.strength is None:
        return f"{row}, lr {point.lr:g}"
    return f"{row} {point.strength:g}" + ("" if point.lr == LR else f", lr {point.lr:g}")


def changes(point: Point) -> dict[str, Any]:
    """What a point changes of the settings of its row."""
    return {"lr": point.lr} if point.strength is None else {"lr": point.lr, "learner": {"strength": point.strength}}


def tried(grids: Grids, more: Models | None = None) -> Models:
    """A model for each point of each grid. more: what rows ask for that are not among the usual ones."""
    known = {**LEARNERS, **OURS, **(more or {})}
    return {
        name_of(row, point): {"method": row, **known.get(row, {}), **changes(point)}
        for row, grid in grids.items()
        for point in grid
    }


def chosen(table: Table, grids: Grids) -> dict[str, Point]:
    """The best point of each grid by the mean over seeds, of grids that are stored whole. One at the edge gives way to
    one inside that is as good but for chance: where a method fails whatever its settings, chance would pick an edge."""
    found: dict[str, Point] = {}
    for row, grid in grids.items():
        reached = {point: reached_by(table, name_of(row, point)) for point in grid}
        known = {point: value for point, value in reached.items() if value is not None}
        if len(known) == len(grid):
            best = max(known, key=known.__getitem__)
            inside = max((p for p in known if not at_edge(p, grid)), key=known.__getitem__, default=best)
            found[row] = inside if known[inside] >= known[best] - CHANCE else best
    return found


@cache
def stored_runs(name: str) -> dict[tuple[str, int], Run]:
    """The runs of a table by model and seed, stale ones as well."""
    return {(run["model"], run["seed"]): run for run in read_runs(table_path(RESULTS, name))}


def reached_by(table: Table, model: str) -> float | None:
    """The mean accuracy over the seeds of a table; None if a run is missing or stale."""
    values = []
    for seed in table.seeds:
        run = stored_runs(table.name).get((model, seed))
        if run is None or run["hash"] != Job(table, model, seed).hash:
            return None
        values.append(run["quality"]["acc"])
    return fmean(values)


def settings_by(table: Table, grids: Grids) -> dict[str, dict[str, Any]]:
    """What the stored runs of a table change of each row."""
    return {row: changes(point) for row, point in chosen(table, grids).items()}


def with_chosen(models: Models, found: Mapping[str, Mapping[str, Any]], like: Callable[[str], str] = str) -> Models:
    """Models with what was found for them. like: the row whose grid a model is chosen by."""
    return {name: {**one, **found.get(like(name), {})} for name, one in models.items()}


def at_edge(point: Sequence[Value], grid: Sequence[Sequence[Value]]) -> bool:
    """Whether a value is the lowest or highest that was tried with the others of its point: a better may lie beyond."""
    for place, value in enumerate(point):
        others = [*point[:place], *point[place + 1 :]]
        line = [p[place] for p in grid if [*p[:place], *p[place + 1 :]] == others]
        known = {v for v in line if v is not None}
        if len(known) > 1 and value in (min(known), max(known)):
            return True
    return False
