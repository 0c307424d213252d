"""docs/continual-results.md: what the stored runs say, table by table; docs/continual.md has the summary."""

from __future__ import annotations

from statistics import fmean

from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import ABSENT, Pages, markdown
from dynamicgate.lab.statistics import interval
from experiments.continual.matching import matched, overlap_and_forgetting, said
from experiments.continual.plot import plot_ageing, plot_capacity
from experiments.continual.shown import Rows, macs, mean, percent, plus_minus, relative, rows_of
from experiments.continual.summary import early, late, summary

PAGE, GUIDE = "docs/continual-results.md", "docs/continual.md"
FIGURES = {"e5": ("docs/figures/continual-age.svg", plot_ageing),
           "e7": ("docs/figures/continual-capacity.svg", plot_capacity)}  # fmt: skip
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
SECTIONS = {  # of the page, with their tables
    "keeping": ("e1", "e1-longer", "e2", "e2-rivals", "e3", "e4", "e7"), "forgetting": ("e0-permuted-5",
    "e0-permuted-10", "e0-rotated-5"), "age": ("e5", "e6", "e6-wide"), "classes": ("e8", "e9", "e9-cifar10"),
    "cells": ("e10", "e10-laboratories", "e10-shared-genes"), "clocks": ("e11",), "tuning": ("tuning-keep",
    "tuning-learners"),
}  # fmt: skip


def pages(experiment: Experiment) -> Pages:
    """Summary, tables and figures from all stored runs."""
    sections, made = {}, {}
    tables = {name: rows_of(experiment, name) for names in SECTIONS.values() for name in names}
    for marker, names in SECTIONS.items():
        parts = []
        for name in names:
            if rows := tables[name]:
                parts += [f"### {title(name)}\n", clocks(rows) if name == "e11" else section(rows)]
                parts += [equally_learned(rows)] if marker == "forgetting" else []
                if name in FIGURES:
                    path, plot = FIGURES[name]
                    made[path] = plot(rows)
        sections[marker] = "\n".join(parts).rstrip() if parts else MISSING
    return {**made, GUIDE: {"summary": summary(tables)}, PAGE: sections}


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
    columns = ["method", "ACC", "all rows", "balanced", "learned", "forgetting", "bytes kept", "non-zero", "MACs",
               "of dense", "seeds"]  # fmt: skip
    body = [
        [name, percent(runs, "acc"), percent(runs, "pooled"), percent(runs, "balanced"), percent(runs, "learned"),
         percent(runs, "forgetting"),
         mean(runs, "bytes"), mean(runs, "params"), macs(runs), relative(runs), str(len(runs))]
        for name, runs in rows.items()
    ]  # fmt: skip
    return markdown(columns, body, numbers=True) + "\n"


def equally_learned(rows: Rows) -> str:
    """Forgetting where as much was learned, and overlap."""
    body = [[one.method, f"{one.overlap:.3f}", said(one.apart)] for one in matched(rows)]
    r = overlap_and_forgetting(rows)
    text = "" if r is None else f"\nOver all runs, overlap and forgetting correlate with r = {r:.2f}.\n"
    columns = ["method", "overlap of active units", "forgets more than dense that has learned as much, points"]
    return markdown(columns, body, numbers=True) + "\n" + text


def contexts(rows: Rows) -> str:
    """Contexts with blocks of their own."""
    columns = ["model", "ACC", "forgetting", "contexts found", "non-zero", "MACs", "of 784-2048-2048-10", "first 10",
               "last 10 learned", "seeds"]  # fmt: skip
    body = []
    for name, runs in rows.items():
        learned = [run["quality"]["learned"] for run in runs]
        body.append([
            name, percent(runs, "acc"), percent(runs, "forgetting"),
            f"{fmean(run['quality']['contexts'] for run in runs):.1f}",
            mean(runs, "params"), macs(runs), relative(runs, "relative_to_usual"),
            f"{100 * fmean(fmean(one[:10]) for one in learned):.2f}",
            f"{100 * fmean(fmean(one[-10:]) for one in learned):.2f}", str(len(runs)),
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
    return markdown(columns, body, numbers=True) + "\n"


def clocks(rows: Rows) -> str:
    """A map for each world: accuracy on rows before the step on them, by learning rate of gates and period of
    rewiring."""
    cells: dict[str, dict[tuple[str, str], str]] = {}
    for name, runs in rows.items():
        world, rate, every = name.split(", ")
        online = [100 * fmean(run["quality"]["retention"]["online"]) for run in runs]
        place = rate.removeprefix("gates "), every.removeprefix("every ")
        cells.setdefault(world, {})[place] = f"{fmean(online):.2f}"
    parts = []
    for world, found in cells.items():
        rates, periods = (list(dict.fromkeys(place[i] for place in found)) for i in (0, 1))
        body = [[f"{rate} times", *(found.get((rate, period), ABSENT) for period in periods)] for rate in rates]
        head = [f"{world}: rate of gates", *(f"every {p}" if p != "never" else "never" for p in periods)]
        parts.append(markdown(head, body, numbers=True) + "\n")
    count = min(len(runs) for runs in rows.values())
    return "\n".join(parts) + f"\nSeeds: {count}.\n"
