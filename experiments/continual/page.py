"""The results in docs/continual.md: what the stored runs say, table by table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from dynamicgate.lab.result_file import Run
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from dynamicgate.lab.runner.results import read_results
from dynamicgate.lab.statistics import interval
from experiments.continual.matching import matched, overlap_and_forgetting, said

PAGE, MARKER = "docs/continual.md", "streams"
QUESTIONS = {
    "tuning": "Settings, on other permutations and validation rows",
    "e0": "Nothing is kept: do gates, sparse connections or rewiring forget less?",
    "e1": "Ten permutations of MNIST, one network, no task told in testing",
    "e1-longer": "The same, with the recipe of a hundred",
    "e2": "A hundred permutations, every context with blocks of its own",
    "e2-rivals": "A hundred permutations, the usual methods in 784-2048-2048-10",
    "e3": "A hundred permutations, and nobody says when one ends",
    "e4": "A thousand permutations",
    "e5": "Five hundred permutations of 10,000 rows, one pass: does a network grow old?",
    "e6": "Two hundred permutations of 60,000 rows",
    "e6-wide": "Fifty permutations of 60,000 rows, 2,000 units a layer",
    "e7": "Eight hundred permutations with room for a hundred: the oldest are released",
    "e8": "New digits, two at a time, no image stored unless it is said",
    "e9": "Twenty rotations",
    "e9-cifar10": "Natural images, two new classes at a time",
    "e10": "New cell types, two at a time, on genes of the first two",
    "e10-laboratories": "Cells of one laboratory, then of another, tested on both; genes of the first",
    "e10-shared-genes": "The same, on the genes that both have",
    "e11": "Two clocks: learning rate of gates, and period of rewiring",
}


def pages(experiment: Experiment) -> Pages:
    """The page from all stored runs."""
    parts = []
    for table in experiment.tables:
        runs, _ = read_results(experiment.results, experiment.jobs([table]))
        rows = {model: found for (_, model), found in runs.items()}
        if rows:
            parts += [f"### {title(table)}\n", section(rows)]
            parts += [equally_learned(rows)] if table.name.startswith("e0") else []
    return {PAGE: {MARKER: "\n".join(parts).rstrip() if parts else "No run is stored yet."}}


def title(table: Table) -> str:
    """The name of a table and its question."""
    key = next(key for key in sorted(QUESTIONS, key=len, reverse=True) if table.name.startswith(key))
    return f"{table.name.upper()}: {QUESTIONS[key]}"


def section(rows: Mapping[str, Sequence[Run]]) -> str:
    """The table of an experiment."""
    first = next(iter(rows.values()))[0]
    if "online" in first["quality"]:
        return ageing(rows)
    if "by_age" in first["quality"]:
        return contexts(rows)
    columns = ["method", "ACC", "all rows", "balanced", "learned", "forgetting", "bytes kept", "non-zero", "MACs",
               "of dense", "seeds"]  # fmt: skip
    body = [
        [name, percent(runs, "acc"), percent(runs, "pooled"), percent(runs, "balanced"), percent(runs, "learned"),
         percent(runs, "forgetting"),
         f"{fmean(run.get('bytes', 0) for run in runs):,.0f}", f"{fmean(run['params'] for run in runs):,.0f}",
         f"{fmean(run['macs']['executed'] for run in runs):,.0f}", relative(runs), str(len(runs))]
        for name, runs in rows.items()
    ]  # fmt: skip
    return markdown(columns, body, numbers=True) + "\n"


def equally_learned(rows: Mapping[str, Sequence[Run]]) -> str:
    """Forgetting where as much was learned, and overlap."""
    body = [[one.method, f"{one.overlap:.3f}", said(one.apart)] for one in matched(rows)]
    r = overlap_and_forgetting(rows)
    text = "" if r is None else f"\nOver all runs, overlap and forgetting correlate with r = {r:.2f}.\n"
    columns = ["method", "overlap of active units", "forgets more than dense that has learned as much, points"]
    return markdown(columns, body, numbers=True) + "\n" + text


def contexts(rows: Mapping[str, Sequence[Run]]) -> str:
    """Contexts with blocks of their own."""
    columns = ["model", "ACC", "forgetting", "contexts found", "non-zero", "MACs", "of 784-2048-2048-10", "first 10",
               "last 10 learned", "seeds"]  # fmt: skip
    body = []
    for name, runs in rows.items():
        learned = [run["quality"]["learned"] for run in runs]
        body.append([
            name, percent(runs, "acc"), percent(runs, "forgetting"),
            f"{fmean(run['quality']['contexts'] for run in runs):.1f}",
            f"{fmean(run['params'] for run in runs):,.0f}", f"{fmean(run['macs']['executed'] for run in runs):,.0f}",
            f"{fmean(run['macs']['relative_to_usual'] for run in runs):.4f}",
            f"{100 * fmean(fmean(one[:10]) for one in learned):.2f}",
            f"{100 * fmean(fmean(one[-10:]) for one in learned):.2f}", str(len(runs)),
        ])  # fmt: skip
    ages = [run["quality"]["by_age"] for run in next(iter(rows.values()))]
    shown = [age for age in (0, 9, 49, 89, 99, 100, 149, 499, 799) if age < len(ages[0])]
    line = ", ".join(f"{age + 1}: {100 * fmean(one[age] for one in ages):.2f}" for age in shown)
    text = f"\nAccuracy of {next(iter(rows))} by age, the task learned last being 1: {line}.\n"
    return markdown(columns, body, numbers=True) + "\n" + text


def ageing(rows: Mapping[str, Sequence[Run]]) -> str:
    """Online accuracy early and late, for each method; a network that is new in every task has no age."""
    body = []
    for run in (run for runs in rows.values() for run in runs):
        for method, curves in run["quality"]["online"].items():
            tenth = max(1, len(curves[0]) // 10)
            early = interval([100 * fmean(curve[tenth : 2 * tenth] or curve) for curve in curves])
            late = interval([100 * fmean(curve[-tenth:]) for curve in curves])
            body.append([method, str(len(curves[0])), f"{early.mean:.2f}", plus_minus(late),
                         f"{late.mean - early.mean:+.2f}", f"{fmean(run['quality']['silent'][method]):.2f}",
                         f"{run['connections'][method]:,}", str(len(curves))])  # fmt: skip
    columns = ["method", "tasks", "second tenth of tasks", "last tenth", "difference", "silent units", "connections",
               "seeds"]  # fmt: skip
    return markdown(columns, body, numbers=True) + "\n"


def percent(runs: Sequence[Run], name: str) -> str:
    """A measure over seeds, in points."""
    found = [run["quality"].get(name) for run in runs]
    values = [100 * value for value in found if isinstance(value, float) and value == value]
    return plus_minus(interval(values)) if values else ABSENT


def plus_minus(found: Any) -> str:
    """A mean with half of its interval."""
    return f"{found.mean:.2f}" if found.half is None else f"{found.mean:.2f} ± {found.half:.2f}"


def relative(runs: Sequence[Run]) -> str:
    """Executed MACs relative to those of the dense model."""
    found = [run["macs"]["relative"] for run in runs if run["macs"]]
    return f"{fmean(found):.4f}" if found else ABSENT
