"""The report of `dynamicgate continual`: one self-contained HTML page from results.json. Needs no torch."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from dynamicgate.files import read_json, read_json_lines, write_text
from dynamicgate.lab.report.continual_figures import (
    age_figure,
    matrix_figure,
    overlap_figure,
    task_figure,
)

HERE = Path(__file__).parent
Run = dict[str, Any]
COLUMNS = (
    *("model", "known", "ACC", "learned", "forgetting", "bytes kept", "non-zero", "executed MACs", "of dense"),
    "seconds",
)
TOLD = {"ids": "which task a row is from", "boundaries": "when a task ends", "nothing": "nothing"}
IF_MEASURED = {
    "bwt": "BWT",
    "fwt": "FWT",
    "intransigence": "intransigence",
    "stability_gap": "stability gap",
    "plasticity": "plasticity",
    "online": "online",
    "ageing": "ageing",
}
"""Columns that are shown where some run has measured them, by their name in the summary of a retention."""


def write_continual_report(folder: Path, out: Path | None = None) -> Path:
    """Write ``folder/report.html``, or ``out``, from the results in a folder."""
    results = read_json(folder / "results.json")
    path = folder / "report.html" if out is None else out
    write_text(path, render_continual(results["runs"], results["meta"], free_by_task(folder, results["runs"])))
    return path


def continual_table(runs: Sequence[Run]) -> str:
    """The main numbers for a terminal."""
    rows = [columns(runs), *summary(runs)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    return "\n".join("  ".join(cell.rjust(w) if n else cell.ljust(w) for n, (cell, w) in
                               enumerate(zip(row, widths, strict=True))) for row in rows)  # fmt: skip


def measured(runs: Sequence[Run]) -> list[str]:
    """What some of these runs have measured beside the main numbers."""
    return [name for name in IF_MEASURED if percent(runs, name) != "–"]


def columns(runs: Sequence[Run]) -> tuple[str, ...]:
    """The heads of the table."""
    return (*COLUMNS[:5], *(IF_MEASURED[name] for name in measured(runs)), *COLUMNS[5:])


def summary(runs: Sequence[Run]) -> list[tuple[str, ...]]:
    """A row for each model, means over seeds."""
    more = measured(runs)
    return [
        (name, found[0]["told"]["known"],
         *(percent(found, column) for column in ("acc", "learned", "forgetting", *more)),
         f"{fmean(run['bytes'] for run in found):,.0f}", f"{fmean(run['params'] for run in found):,.0f}",
         f"{fmean(run['macs']['executed'] for run in found):,.0f}",
         f"{fmean(run['macs']['relative'] for run in found):.4f}", f"{fmean(run['seconds'] for run in found):.1f}")
        for name, found in by_model(runs).items()
    ]  # fmt: skip


def by_model(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by model, in order."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run["model"], []).append(run)
    return found


def percent(runs: Sequence[Run], name: str) -> str:
    """A mean in points; a dash where nothing was measured."""
    found = [{**run["quality"]["retention"].get("summary", {}), **run["quality"]} for run in runs]
    values = [quality[name] for quality in found if quality.get(name) is not None]
    values = [value for value in values if value == value]
    return f"{100 * fmean(values):.2f}" if values else "–"


def free_by_task(folder: Path, runs: Sequence[Run]) -> dict[str, list[float]]:
    """The fraction of free units after each task, from the log of the first run of each model that keeps something."""
    found: dict[str, list[float]] = {}
    for name, of_model in by_model(runs).items():
        log = folder / f"{name}-s{of_model[0]['seed']}" / "log.jsonl"
        rows = read_json_lines(log, []) if log.exists() else []
        free = [fmean(row["free"].values()) for row in rows if "tested" in row and row.get("free")]
        if free:
            found[name] = free
    return found


def sentence(runs: Sequence[Run]) -> str:
    """What the runs say, in a sentence or two."""
    models = by_model(runs)
    means = {name: fmean(run["quality"]["acc"] for run in found) for name, found in models.items()}
    best = max(means, key=lambda name: means[name])
    forgotten = {
        name: fmean(values)
        for name, found in models.items()
        if (values := [v for run in found if (v := run["quality"]["forgetting"]) is not None and v == v])
    }
    tasks, told = len(runs[0]["quality"]["retention"]["matrix"]), runs[0]["told"]
    text = f"After {tasks} tasks {best} answers best, {means[best]:.2%} over all of them."
    if forgotten:
        most, least = (pick(forgotten, key=lambda name: forgotten[name]) for pick in (max, min))
        text += (
            f" {most} forgets most ({100 * forgotten[most]:.2f} points), {least} least ({100 * forgotten[least]:.2f})."
        )
    seconds = sum(run["seconds"] for run in runs)
    return (
        f"{text} Told in training: {TOLD[told['known']]}; asked in the scenario “{told['scenario']}”. All runs "
        f"together took {seconds:,.0f} seconds."
    )


def overlap_dots(runs: Sequence[Run]) -> dict[str, list[tuple[float, float]]]:
    """For each task but the last its mean overlap with later ones, and what was forgotten of it."""
    dots: dict[str, list[tuple[float, float]]] = {}
    for run in runs:
        overlap, drop = run["quality"].get("overlap"), run["quality"].get("drop")
        if overlap and run["settings"]["method"] != "joint":
            dots.setdefault(run["model"], []).extend(
                (fmean(overlap[j][j + 1 :]), drop[j]) for j in range(len(drop) - 1)
            )
    return dots


def online_curves(models: dict[str, list[Run]]) -> dict[str, list[float]]:
    """For each model and task the fraction of rows answered right before the step on them, mean over seeds."""
    curves = {name: [run["quality"]["retention"]["online"] for run in found] for name, found in models.items()}
    return {
        name: [fmean(task) for task in zip(*of_seeds, strict=True)]
        for name, of_seeds in curves.items()
        if all(of_seeds)
    }


def render_continual(runs: Sequence[Run], meta: dict[str, Any], free: dict[str, list[float]]) -> str:
    """The HTML of the page."""
    models = by_model(runs)
    styles = {name: number for number, name in enumerate(models)}
    ages = {}
    for name, found in models.items():
        last = [run["quality"]["retention"]["matrix"][-1][::-1] for run in found]
        ages[name] = [fmean(v for row in last if (v := row[age]) is not None) for age in range(len(last[0]))]
    head = "".join(f"<th>{escape(name)}</th>" for name in columns(runs))
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in row) + "</tr>" for row in summary(runs))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    maps = "".join(
        f"<figure><figcaption>{escape(name)}, seed {found[0]['seed']}</figcaption>"
        f"{matrix_figure(name, found[0]['quality']['retention']['matrix'], styles[name])}</figure>"
        for name, found in models.items()
    )
    new_rows = "Accuracy on new rows, task by task"  # before the step on them: where a line falls, a network ages
    sections = [
        ("What is retained", f'<div class="scroll">{table}</div>'),
        ("Accuracy after each task (rows) on each task (columns)", f'<div class="maps">{maps}</div>'),
        ("Accuracy by age", age_figure(ages, styles)),
        (new_rows, task_figure(online_curves(models), styles, new_rows)),
        ("Forgetting against overlap of open units", overlap_figure(overlap_dots(runs), styles)),
        ("Free capacity", task_figure(free, styles, "Free capacity after each task")),
    ]  # fmt: skip
    shown = "".join(f"<section><h2>{title}</h2>{content}</section>" for title, content in sections if content)
    style = (HERE / "page.css").read_text(encoding="utf-8")
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f"<title>Continual learning · DynamicGate</title><style>{style}</style></head><body><header>"
        '<p class="eyebrow">DynamicGate report</p><h1>Continual learning</h1>'
        f'<p class="headline">{escape(sentence(runs))}</p>'
        f'<p class="command"><span>created with</span> <code>{escape(str(meta.get("command", "")))}</code></p>'
        f"</header><main>{shown}</main></body></html>\n"
    )
