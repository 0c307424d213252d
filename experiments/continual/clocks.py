"""E11 on the page: maps of time scales, one for each world."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.docs_pages import ABSENT, markdown
from experiments.continual.shown import Rows, percent, seconds, told

Cells = dict[str, dict[tuple[str, str], str]]
"""For each world, what stands in each row and column of its map."""


def clocks(rows: Rows) -> str:
    """Accuracy on rows before the step on them, by learning rate of gates and period of rewiring."""
    cells: Cells = {}
    for name, runs in rows.items():
        world, rate, every = name.split(", ")
        cells.setdefault(world, {})[f"{rate.removeprefix('gates ')} times", every] = online(runs)
    return maps(cells, "rate of gates", rows)


def consolidation(rows: Rows) -> str:
    """The same, and after a stroke what is forgotten at the end, by the number of exchanges after which a connection is
    kept and the period of rewiring."""
    cells: Cells = {}
    for name, runs in rows.items():
        world, every, after = name.split(", ")
        cells.setdefault(world, {})[after, every] = f"{online(runs)} / {percent(runs, 'forgetting').split(' ')[0]}"
    return maps(cells, "connections", rows)


def online(runs: Sequence[Run]) -> str:
    """Accuracy on rows before the step on them, over tasks and seeds."""
    return f"{100 * fmean(fmean(run['quality']['retention']['online']) for run in runs):.2f}"


def maps(cells: Cells, corner: str, rows: Rows) -> str:
    """A table for each world."""
    parts = []
    for world, found in cells.items():
        sides, periods = (list(dict.fromkeys(place[i] for place in found)) for i in (0, 1))
        body = [[side, *(found.get((side, period), ABSENT) for period in periods)] for side in sides]
        head = [f"{world}: {corner}", *(period.replace("every never", "never") for period in periods)]
        parts.append(markdown(head, body, numbers=True) + "\n")
    every = [run for runs in rows.values() for run in runs]
    known = " and ".join(sorted({told([run]) for run in every}))
    count = min(len(runs) for runs in rows.values())
    return (
        "\n".join(parts)
        + f"\nSeeds: {count}. Told: {known}; no method makes use of it. {seconds(every)} seconds a run.\n"
    )
