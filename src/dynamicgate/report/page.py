"""The page: one self-contained HTML file made from results.json, the training logs and the timings."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from .classes import class_caption, class_figure
from .clock import Timing, clock_section
from .curves import Log
from .heading import heading
from .headline import headlines
from .models import is_control, known_models
from .palette import model_styles, swatch
from .read import Results, Run, parts, read_logs, read_results, read_timings, texts
from .rewiring import rewiring_figure
from .summary import caveats, data_names, first_seed, group_runs, summarise
from .tables import (
    budget_table,
    dependence_table,
    has_several_data,
    layer_table,
    proxy_table,
    split_columns,
    summary_table,
)
from .tradeoff import accuracy_figure, budget_figure
from .training import training_figure

HERE = Path(__file__).parent


def write_report(folder: Path) -> Path:
    """Write ``folder/report.html`` from ``folder/results.json`` and the runs' logs and timings; returns its path.

    The file appears whole or not at all.
    """
    folder = Path(folder)
    results = read_results(folder)
    page = render_page(results, read_logs(folder, results), read_timings(folder, results))
    path = folder / "report.html"
    unfinished = folder / f".report.html.{os.getpid()}.tmp"
    try:
        unfinished.write_text(page, encoding="utf-8", errors="replace")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def render_page(results: Results, logs: list[Log], timings: Sequence[Timing]) -> str:
    """The HTML of the report; ``logs`` and ``timings`` are in the order of the runs."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError("the report page needs jinja2: pip install 'dynamicgate[report]'") from error
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2").render(
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        script=(HERE / "sort.js").read_text(encoding="utf-8"),
        **page_content(results, logs, timings),
    )


def page_content(results: Results, logs: list[Log], timings: Sequence[Timing]) -> dict[str, Any]:
    """Everything the template shows."""
    return {
        **heading(results),
        "headlines": headlines(results),
        "several_data": has_several_data(results),
        "caveats": caveats(results),
        "models": model_list(results),
        "has_controls": any(is_control(results, data, model) for data, model in group_runs(results)),
        "summary": summary_table(results),
        "has_split": bool(split_columns(summarise(results))),
        "tradeoffs": [
            {"name": data, "svg": svg} for data in data_names(results) if (svg := accuracy_figure(results, data))
        ],
        "clock": clock_section(results, timings),
        "panels": log_panels(results, logs, training_figure),
        "rewiring": log_panels(results, logs, rewiring_figure),
        "budget_svg": budget_figure(results),
        "budgets": budget_table(results),
        "maps": class_maps(results),
        "layers": layer_tables(results),
        "dependence": dependence_table(results),
        "proxies": proxy_table(results),
    }


def group_title(results: Results, data: str, model: str) -> dict[str, str]:
    """What a panel about one model is called, with its marker."""
    styles = model_styles(run["model"] for run in results["runs"])
    name = f"{model}, {data}" if has_several_data(results) else model
    return {"name": name, "mark": swatch(styles[model], is_control(results, data, model))}


def model_list(results: Results) -> list[dict[str, Any]]:
    """What each model is, in a few words, and whether it is a control."""
    first_data = {run["model"]: run["data"] for run in reversed(results["runs"])}
    styles = model_styles(run["model"] for run in results["runs"])
    return [
        {"name": name, "what": what, "mark": swatch(styles[name], control), "control": control}
        for name, what in known_models(results).items()
        for control in [is_control(results, first_data[name], name)]
    ]


def log_panels(
    results: Results, logs: list[Log], figure: Callable[[str, int, list[Run], list[Log]], str]
) -> list[dict[str, str]]:
    """One panel per model whose logs have something to draw."""
    styles = model_styles(run["model"] for run in results["runs"])
    log_of = {id(run): log for run, log in zip(results["runs"], logs, strict=True)}
    return [
        {**group_title(results, data, model), "svg": svg}
        for (data, model), runs in group_runs(results).items()
        if (svg := figure(model, styles[model], runs, [log_of[id(run)] for run in runs]))
    ]


def class_maps(results: Results) -> list[dict[str, Any]]:
    """The heat maps of each gated model, from the run with seed 0 or the first one."""
    styles = model_styles(run["model"] for run in results["runs"])
    found: list[dict[str, Any]] = []
    for (data, model), runs in group_runs(results).items():
        run = first_seed(runs)
        gates = [
            {"caption": class_caption(gate), "svg": svg}
            for gate in parts(run, "gates")
            if (svg := class_figure(gate, styles[model]))
        ]
        if gates:
            found.append({**group_title(results, data, model), "seed": run["seed"], "gates": gates})
    return found


def layer_tables(results: Results) -> list[dict[str, Any]]:
    """The per-layer table of each model that reports its layers, with what its measurement noted."""
    return [
        {**group_title(results, data, model), "table": table, **layer_notes(runs)}
        for (data, model), runs in group_runs(results).items()
        if (table := layer_table(runs)).rows
    ]


def layer_notes(runs: list[Run]) -> dict[str, Any]:
    """The notes of one run, those of the others being alike, and how many runs have any."""
    noted = [run for run in runs if texts(run, "notes")]
    if not noted:
        return {"notes": [], "noted": ""}
    shown = first_seed(noted)
    several = f"Noted in {len(noted)} of {len(runs)} runs; in that of seed {shown['seed']}:"
    return {"notes": texts(shown, "notes"), "noted": several if len(runs) > 1 else ""}
