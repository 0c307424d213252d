"""docs/continual-results.md: what the stored runs say, table by table; docs/continual.md has the summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import product
from statistics import fmean

from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import Pages, markdown
from dynamicgate.lab.statistics import interval
from experiments.continual.ages import early, late
from experiments.continual.clocks import clocks, consolidation
from experiments.continual.grids import at_edge, chosen, name_of
from experiments.continual.keeping import WHOLE
from experiments.continual.matching import (
    compared,
    in_words,
    open_overlap,
    overlap_and_forgetting,
    said,
)
from experiments.continual.plot import plot_ageing, plot_capacity
from experiments.continual.shown import (
    Rows,
    kept,
    lost,
    macs,
    mean,
    on_task,
    percent,
    plus_minus,
    relative,
    rows_of,
    seconds,
    told,
    with_prototypes,
)
from experiments.continual.summary import summary
from experiments.continual.tables import TUNED
from experiments.continual.tuning import AGEING, best_ages

PAGE, GUIDE = "docs/continual-results.md", "docs/continual.md"
FIGURES = {"e5": ("docs/figures/continual-age.svg", plot_ageing),
           "e7": ("docs/figures/continual-capacity.svg", plot_capacity)}  # fmt: skip
LABORATORIES = ("PBMC 3k", "PBMC 68k")
EARLIER = (
    "Continual backprop of these runs was not tuned, replaced units every 125 steps whatever their age, and did not "
    "move what they gave to the next bias"
)
MISSING = "No run is stored yet.\n"
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
    "e5-decay": "The same rows, weights held small, dense and half of the connections",
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
    "e11-consolidation": "A third clock: connections are kept after so many exchanges",
}
SECTIONS = {  # of the page, with their tables
    "keeping": ("e1", "e1-longer", "e2", "e2-rivals", "e3", "e4", "e7"), "forgetting": ("e0-permuted-5",
    "e0-permuted-10", "e0-rotated-5"), "age": ("e5", "e5-decay", "e6", "e6-wide"), "classes": ("e8", "e9",
    "e9-cifar10"),
    "cells": ("e10", "e10-laboratories", "e10-shared-genes"), "clocks": ("e11", "e11-consolidation"),
    "tuning": ("tuning-keep", "tuning-horizon", "tuning-learners", "tuning-rotated", "tuning-classes", "tuning-cifar10",
    "tuning-rivals", "tuning-plasticity", "tuning-plasticity-decay"),
}  # fmt: skip


def pages(experiment: Experiment) -> Pages:
    """Summary, tables and figures from all stored runs."""
    sections, made = {}, {}
    tables = {name: rows_of(experiment, name) for names in SECTIONS.values() for name in names}
    for marker, names in SECTIONS.items():
        parts = []
        for name in names:
            if rows := tables[name]:
                parts += [f"### {title(name)}\n", SHOWN.get(name, section)(rows)]
                parts += [AFTER[marker](rows, name, tables)] if marker in AFTER else []
                if name in FIGURES:
                    path, plot = FIGURES[name]
                    made[path] = plot(rows)
        sections[marker] = "\n".join(parts).rstrip() if parts else MISSING
    return {**made, GUIDE: {"summary": summary(tables)}, PAGE: sections}


def by_laboratory(rows: Rows, name: str, _tables: Mapping[str, Rows]) -> str:
    """What is reached on each laboratory at the end, and what was chosen within splits."""
    text = chosen_within(rows)
    if not name.startswith("e10-"):
        return text
    places = range(len(next(iter(rows.values()))[0]["quality"]["retention"]["matrix"]))
    body = [[model, *(cell for place in places for cell in on_task(runs, place)), kept(runs)]
            for model, runs in rows.items()]  # fmt: skip
    columns = ["on each", *(f"{measure}, {lab}" for lab in LABORATORIES for measure in ("accuracy", "balanced"))]
    return markdown([*columns, "bytes kept"], body, numbers=True) + "\n" + text


def chosen_within(rows: Rows) -> str:
    """By validation cells, in how many splits each."""
    parts = []
    for name, runs in rows.items():
        own = Counter(", ".join(f"{k} {v}" for k, v in run["chosen"].items()) for run in runs if "chosen" in run)
        parts += [f"{name}: {'; '.join(f'{what} in {n}' for what, n in own.most_common())}"] if own else []
    return f"\nChosen by validation cells, in how many splits. {'. '.join(parts)}.\n" if parts else ""


def chosen_settings(_rows: Rows, name: str, _tables: Mapping[str, Rows]) -> str:
    """What the runs of a table of tuning choose, and where a better value may lie beyond those that were tried."""
    if name in AGEING:
        ages, tried_of = best_ages(name), AGEING[name]
        found = {method: ", ".join(f"{k} {v:g}" for k, v in own.items()) for method, own in ages.items()}
        edges = [m for m, own in ages.items() if at_edge(list(own.values()), list(product(*tried_of[m].values())))]
    else:
        table, grids = next(((t, g) for t, g in TUNED.values() if t.name == name), (None, {}))
        best = {} if table is None else chosen(table, grids)
        found = {row: name_of(row, point).removeprefix(row).strip(", ") for row, point in best.items()}
        edges = [row for row, point in best.items() if at_edge(point, grids[row])]
    if not found:
        return ""
    listed = "; ".join(f"{row}: {own}" for row, own in found.items())
    return f"Chosen: {listed}. At an edge of what was tried: {', '.join(edges) or 'none'}.\n"


def title(name: str) -> str:
    """The name of a table and its question."""
    key = next(key for key in sorted(QUESTIONS, key=len, reverse=True) if name.startswith(key))
    return f"{name.replace('e', 'E', 1) if name.startswith('e') else name}: {QUESTIONS[key]}"


def section(rows: Rows) -> str:
    """The table of an experiment."""
    first = next(iter(rows.values()))[0]
    if "online" in first["quality"]:
        return ageing(rows)
    if "by_age" in first["quality"]:
        return contexts(rows)
    columns = ["method", "told", "ACC", "all rows", "balanced", "learned", "forgetting", "bytes kept", "non-zero",
               "MACs", "of dense", "seconds", "seeds"]  # fmt: skip
    body = [
        [name, told(runs), percent(runs, "acc"), percent(runs, "pooled"), percent(runs, "balanced"),
         percent(runs, "learned"), percent(runs, "forgetting"), kept(runs),
         mean(runs, "params"), macs(runs), relative(runs), seconds(runs), str(len(runs))]
        for name, runs in rows.items()
    ]  # fmt: skip
    return markdown(columns, body, numbers=True) + "\n"


def equally_learned(rows: Rows, name: str, tables: Mapping[str, Rows]) -> str:
    """Forgetting where as much was learned, and overlap. p-values are corrected for the comparisons of all streams."""
    streams = {key: tables[key] for key in SECTIONS["forgetting"] if tables[key]}
    found = compared(streams)
    body = [[method, f"{one.matched.overlap:.3f}", open_overlap(rows, method), said(one.matched.apart, one.p)]
            for (stream, method), one in found.items() if stream == name]  # fmt: skip
    r = overlap_and_forgetting(rows)
    text = "" if r is None else f"\nOver all runs, overlap and forgetting correlate with r = {r:.2f}.\n"
    if name == list(streams)[-1]:
        words = [part for method in ("gate", "gate in blocks") if (part := in_words(method, found))]
        text += f"\nCorrected for {len(found)} comparisons: {', and '.join(words)}.\n" if words else ""
    columns = ["method", "overlap of active units", "of open blocks",
               "forgets more than dense that has learned as much, points (p by Holm)"]  # fmt: skip
    return markdown(columns, body, numbers=True) + "\n" + text if body else text


def contexts(rows: Rows) -> str:
    """Contexts with blocks of their own."""
    whole = all(len(run["quality"]["by_age"]) <= WHOLE for runs in rows.values() for run in runs)
    columns = ["model", "told", "ACC", "forgetting" if whole else "−BWT", "contexts found", "non-zero",
               "with prototypes", "MACs", "of 784-2048-2048-10", "first 10", "last 10 learned", "seconds",
               "seeds"]  # fmt: skip
    body = []
    for name, runs in rows.items():
        learned = [run["quality"]["learned"] for run in runs]
        body.append([
            name, told(runs), percent(runs, "acc"), lost(runs),
            f"{fmean(run['quality']['contexts'] for run in runs):.1f}",
            mean(runs, "params"), with_prototypes(runs), macs(runs), relative(runs, "relative_to_usual"),
            f"{100 * fmean(fmean(one[:10]) for one in learned):.2f}",
            f"{100 * fmean(fmean(one[-10:]) for one in learned):.2f}", seconds(runs), str(len(runs)),
        ])  # fmt: skip
    ages = [run["quality"]["by_age"] for run in next(iter(rows.values()))]
    shown = [age for age in (0, 9, 49, 89, 99, 100, 149, 499, 799) if age < len(ages[0])]
    line = ", ".join(f"{age + 1}: {100 * fmean(one[age] for one in ages):.2f}" for age in shown)
    text = f"\nAccuracy of {next(iter(rows))} by age, the task learned last being 1: {line}.\n"
    for directions, found in next(iter(rows.values()))[0]["quality"].get("routers", {}).items():
        cost = f"With prototypes in {directions} random directions, which cost {found['gate']:,.0f} MACs a row"
        named, acc = 100 * found["named"], 100 * found["acc"]
        text += f"\n{cost}, {named:.2f} % of the rows are recognised and ACC is {acc:.2f}.\n"
    return markdown(columns, body, numbers=True) + "\n" + text


def ageing(rows: Rows) -> str:
    """Online accuracy early and late, for each method; a network that is new in every task has no age."""
    body = []
    for run in (run for runs in rows.values() for run in runs):
        for method, curves in run["quality"]["online"].items():
            begun, ended = (interval([100 * fmean(part(curve)) for curve in curves]) for part in (early, late))
            body.append([method, str(len(curves[0])), f"{begun.mean:.2f}", plus_minus(ended),
                         f"{ended.mean - begun.mean:+.2f}", f"{fmean(run['quality']['silent'][method]):.2f}",
                         f"{run['connections'][method]:,}", str(len(curves))])  # fmt: skip
    columns = ["method", "tasks", "second tenth of tasks", "last tenth", "difference", "silent units", "connections",
               "seeds"]  # fmt: skip
    each = "; ".join(f"{name}, {seconds(runs)} seconds" for name, runs in rows.items())
    knows = "Nothing is told in training" + (", but to fresh networks when a task ends" if "fresh" in rows else "")
    if any("options" not in run["settings"] for runs in rows.values() for run in runs):
        knows += ". " + EARLIER
    return markdown(columns, body, numbers=True) + f"\n\n{knows}. All networks of a run at once: {each}.\n"


SHOWN = {"e11": clocks, "e11-consolidation": consolidation}
AFTER = {"forgetting": equally_learned, "cells": by_laboratory, "tuning": chosen_settings}
