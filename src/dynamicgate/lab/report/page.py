"""The page: one self-contained HTML file from results.json and each run's log, sample statistics and timings."""

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dynamicgate.files import write_text
from dynamicgate.lab.report.accuracy_plot import accuracy_figure
from dynamicgate.lab.report.budget_error_plot import budget_figure
from dynamicgate.lab.report.caveats import find_caveats
from dynamicgate.lab.report.compared_models import MODEL_TABLE
from dynamicgate.lab.report.controls import is_control
from dynamicgate.lab.report.gate_curves import constants_note, gate_figure
from dynamicgate.lab.report.latency import latency_section
from dynamicgate.lab.report.model_markers import model_styles, swatch
from dynamicgate.lab.report.model_panels import (
    cost_panels,
    example_panels,
    heatmap_panels,
    layer_panels,
    log_panels,
)
from dynamicgate.lab.report.page_header import header_content
from dynamicgate.lab.report.reading import (
    Log,
    Results,
    SampleStats,
    Timing,
    read_logs,
    read_results,
    read_sample_stats,
    read_timings,
)
from dynamicgate.lab.report.run_metrics import quality_word
from dynamicgate.lab.report.sparsity_curves import sparsity_figure
from dynamicgate.lab.report.stage_panels import stage_section
from dynamicgate.lab.report.summary import dataset_names, group_runs, has_several_datasets, summarise
from dynamicgate.lab.report.svg import for_every_screen
from dynamicgate.lab.report.tables import (
    budget_table,
    input_dependence_table,
    percentile_columns,
    proxy_table,
    savings_columns,
    summary_table,
)
from dynamicgate.lab.report.verdicts import bottom_lines, headlines

HERE = Path(__file__).parent
SECTIONS = ("sections.html.j2", "glossary.html.j2")
SCRIPTS = ("sort_tables.js", "tooltips.js")


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write ``folder/report.html``, or ``out``, from the results in a folder and what each run left in its own.

    Returns the path of the page, which is written whole or not at all.
    """
    folder = Path(folder)
    results = read_results(folder)
    logs, stats = read_logs(folder, results), read_sample_stats(folder, results)
    page = render_page(results, logs, stats, read_timings(folder, results))
    path = folder / "report.html" if out is None else Path(out)
    write_text(path, page.encode("utf-8", "replace").decode("utf-8"))  # replace: half a surrogate pair in a name
    return path


def render_page(results: Results, logs: list[Log], all_stats: Sequence[SampleStats], timings: Sequence[Timing]) -> str:
    """The HTML of the report; logs, sample statistics and timings are in the order of the runs."""
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
    content = page_content(results, logs, all_stats, timings)
    sections = "".join(environment.get_template(name).render(**content) for name in SECTIONS)
    return environment.get_template("page.html.j2").render(
        style=(HERE / "page.css").read_text(encoding="utf-8"),
        scripts=[(HERE / name).read_text(encoding="utf-8") for name in SCRIPTS],
        sections=sections,
        contents=re.findall(r'<section id="([\w-]+)"[^>]*>\s*<h2>([^<]*)</h2>', sections),
        **content,
    )


def page_content(
    results: Results, logs: list[Log], all_stats: Sequence[SampleStats], timings: Sequence[Timing]
) -> dict[str, Any]:
    """Everything the templates show."""
    examples = example_panels(results, all_stats)
    summary = summarise(results)
    samples = [sample for panel in examples for group in panel["groups"] for sample in group["samples"]]
    return {
        **header_content(results),
        "headlines": headlines(results, timings),
        "bottom_lines": bottom_lines(results),
        "several_datasets": has_several_datasets(results),
        "caveats": find_caveats(results),
        "models": described_models(results),
        "has_controls": any(is_control(results, dataset, model) for dataset, model in group_runs(results)),
        "quality_word": quality_word(results["runs"]),
        "summary": summary_table(results),
        "has_savings": bool(savings_columns(summary)),
        "has_percentiles": bool(percentile_columns(summary)),
        "accuracy_figures": [
            {"name": dataset, "svg": svg}
            for dataset in dataset_names(results)
            if (svg := for_every_screen(partial(accuracy_figure, results, dataset)))
        ],
        "stages": stage_section(results, all_stats),
        "latency": latency_section(results, timings),
        "gate_panels": log_panels(results, logs, gate_figure, constants_note),
        "sparsity_panels": log_panels(results, logs, sparsity_figure),
        "budget_svg": for_every_screen(partial(budget_figure, results)),
        "budgets": budget_table(results),
        "heatmaps": heatmap_panels(results, all_stats),
        "cost_panels": cost_panels(results, all_stats),
        "examples": examples,
        "examples_have_features": any(sample["features"] for sample in samples),
        "layer_panels": layer_panels(results),
        "dependence": input_dependence_table(results),
        "proxies": proxy_table(results),
    }


def described_models(results: Results) -> list[dict[str, Any]]:
    """What each model that the table knows is, in one line, and whether it is a control."""
    first_dataset = {run["model"]: run["data"] for run in reversed(results["runs"])}
    styles = model_styles(run["model"] for run in results["runs"])
    found = []
    for name in dict.fromkeys(run["model"] for run in results["runs"]):
        if name in MODEL_TABLE:
            known, control = MODEL_TABLE[name], is_control(results, first_dataset[name], name)
            shown = {"name": name, "mark": swatch(styles[name], control), "control": control}
            found.append({**shown, "group": known.group, "description": known.description})
    return found
