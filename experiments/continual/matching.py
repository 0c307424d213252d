"""E0: who forgets less at equal learned accuracy? A method that learns less also has less to forget, so runs of several
lengths are compared where they have learned equally much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import correlation, fmean
from typing import NamedTuple

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.statistics import Paired, paired

CONTROL = "dense"


class Point(NamedTuple):
    """What a run has learned and forgotten, and how much the same units are active in two tasks, on average."""

    learned: float
    forgetting: float
    overlap: float


class Matched(NamedTuple):
    """How much more a method forgets than the control where both have learned equally much, over seeds; None where no
    run has learned as much as some run of the control."""

    method: str
    overlap: float
    apart: Paired | None


def matched(rows: Mapping[str, Sequence[Run]]) -> list[Matched]:
    """All methods against the control, seed by seed. Names of rows are "method, length"."""
    points: dict[str, dict[int, list[Point]]] = {}
    for name, runs in rows.items():
        for run in runs:
            points.setdefault(name.rpartition(", ")[0], {}).setdefault(run["seed"], []).append(point(run))
    control, found = points.get(CONTROL, {}), []
    for method, by_seed in points.items():
        apart = []
        for seed, own in by_seed.items():
            here = [
                p.forgetting - at for p in own if (at := forgotten_at(control.get(seed, ()), p.learned)) is not None
            ]
            apart += [fmean(here)] if here else []
        overlap = fmean(p.overlap for own in by_seed.values() for p in own)
        found.append(Matched(method, overlap, paired(apart, [0.0] * len(apart)) if apart else None))
    return found


def point(run: Run) -> Point:
    """Of a run."""
    quality = run["quality"]
    pairs = [value for i, row in enumerate(quality["overlap"]) for j, value in enumerate(row) if i != j]
    return Point(quality["learned"], quality["forgetting"], fmean(pairs))


def forgotten_at(points: Sequence[Point], learned: float) -> float | None:
    """What these runs forget where they have learned so much, between two of them; None outside of them."""
    ordered = sorted(points)
    for low, high in pairwise(ordered):
        if low.learned <= learned <= high.learned:
            share = (learned - low.learned) / (high.learned - low.learned) if high.learned > low.learned else 0.0
            return low.forgetting + share * (high.forgetting - low.forgetting)
    return None


def overlap_and_forgetting(rows: Mapping[str, Sequence[Run]]) -> float | None:
    """The correlation of overlap and forgetting over all runs; None for too few, or where one does not vary."""
    points = [point(run) for runs in rows.values() for run in runs]
    overlaps, lost = [p.overlap for p in points], [p.forgetting for p in points]
    return correlation(overlaps, lost) if len(set(overlaps)) > 1 and len(set(lost)) > 1 else None


def said(apart: Paired | None) -> str:
    """A difference in points, with its p-value."""
    if apart is None:
        return "–"
    return f"{100 * apart.difference:+.2f}" + ("" if apart.p is None else f" (p = {apart.p:.3f})")
