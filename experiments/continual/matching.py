"""E0: who forgets less at equal learned accuracy? A method that learns less also has less to forget, so runs of several
lengths are compared where they have learned equally much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import correlation, fmean
from typing import NamedTuple

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner.docs_pages import ABSENT
from dynamicgate.lab.statistics import Paired, holm, paired

CONTROL, SIGNIFICANT = "dense", 0.05


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
    return Point(quality["learned"], quality["forgetting"], mean_apart(quality["overlap"]))


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


def open_overlap(rows: Mapping[str, Sequence[Run]], method: str) -> str:
    """How much the same blocks of its gates are open in two tasks; missing where it was not measured."""
    matrices = [run["quality"].get("open_overlap") for name, runs in rows.items() for run in runs
                if name.rpartition(", ")[0] == method]  # fmt: skip
    values = [mean_apart(matrix) for matrix in matrices if matrix is not None]
    return f"{fmean(values):.3f}" if values else ABSENT


def mean_apart(matrix: Sequence[Sequence[float]]) -> float:
    """The mean over pairs of two tasks."""
    return fmean(value for i, row in enumerate(matrix) for j, value in enumerate(row) if i != j)


def corrected(found: Sequence[Paired | None]) -> list[float | None]:
    """p-values of these comparisons, corrected for their number by Holm's rule."""
    known = [one.p for one in found if one is not None and one.p is not None]
    by_holm = iter(holm(known))
    return [None if one is None or one.p is None else next(by_holm) for one in found]


def said(apart: Paired | None, p: float | None) -> str:
    """A difference in points, with its corrected p-value."""
    if apart is None:
        return ABSENT
    return f"{100 * apart.difference:+.2f}" + ("" if p is None else f" (p = {p:.3f})")


class Compared(NamedTuple):
    """A method beside the control in a stream, with a p-value that is corrected for all methods and streams."""

    matched: Matched
    p: float | None

    @property
    def verdict(self) -> str:
        """Whether it forgets less, more, or neither."""
        apart = self.matched.apart
        if apart is None or self.p is None or self.p >= SIGNIFICANT:
            return "neither significantly less nor more"
        return "less" if apart.difference < 0.0 else "more"


def compared(streams: Mapping[str, Mapping[str, Sequence[Run]]]) -> dict[tuple[str, str], Compared]:
    """Every method but the control in every stream."""
    found = {
        (name, one.method): one for name, rows in streams.items() for one in matched(rows) if one.method != CONTROL
    }
    p_values = corrected([one.apart for one in found.values()])
    return {key: Compared(one, p) for (key, one), p in zip(found.items(), p_values, strict=True)}


def in_words(method: str, found: Mapping[tuple[str, str], Compared]) -> str:
    """Where a method forgets less, more, or neither."""
    verdicts: dict[str, list[str]] = {}
    for (name, of), one in found.items():
        if of == method and one.matched.apart is not None:
            verdicts.setdefault(one.verdict, []).append(called(name))
    where = "; ".join(f"{verdict} on {' and '.join(names)}" for verdict, names in verdicts.items())
    return f"a {method} forgets {where}" if where else ""


def called(name: str) -> str:
    """A stream in words."""
    kind, tasks = name.removeprefix("e0-").split("-")
    return f"{tasks} {kind} tasks"
