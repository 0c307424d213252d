"""The page: one self-contained HTML file made from results.json and what each run left: log, evidence, timing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynamicgate.files import write_text
from dynamicgate.lab.report.costs import Evidence
from dynamicgate.lab.report.curves import Log
from dynamicgate.lab.report.heading import heading
from dynamicgate.lab.report.headline import headlines
from dynamicgate.lab.report.latency import Timing, clock_section
from dynamicgate.lab.report.models import is_control, known_models
from dynamicgate.lab.report.palette import model_styles, swatch
from dynamicgate.lab.report.panels import class_maps, cost_panels, input_panels, layer_tables, log_panels
from dynamicgate.lab.report.reading import Results, read_beside, read_logs, read_results
from dynamicgate.lab.report.sparsity import rewiring_figure
from dynamicgate.lab.report.summary import caveats, data_names, group_runs, summarise
from dynamicgate.lab.report.tables import (
    budget_table,
    dependence_table,
    has_several_data,
    proxy_table,
    split_columns,
    summary_table,
)
from dynamicgate.lab.report.tradeoff import accuracy_figure, budget_figure
from dynamicgate.lab.report.training import steady, training_figure

HERE = Path(__file__).parent


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Write ``folder/report.html``, or ``out``, from the results in a folder and what the runs left in theirs.

    Returns the path of the page, which appears whole or not at all.
    """
    folder = Path(folder)
    results = read_results(folder)
    evidences, timings = (read_beside(folder, results, name) for name in ("evidence.json", "timing.json"))
    page = render_page(results, read_logs(folder, results), evidences, timings)
    path = folder / "report.html" if out is None else Path(out)
    write_text(path, page.encode("utf-8", "replace").decode("utf-8"))  # replace: half a surrogate pair in a name
    return path


def render_page(results: Results, logs: list[Log], evidences: Sequence[Evidence], timings: Sequence[Timing]) -> str:
    """The HTML of the report; logs, evidences and timings are in the order of the runs."""
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
        scripts=[(HERE / name).read_text(encoding="utf-8") for name in ("sort.js", "hover.js")],
        **page_content(results, logs, evidences, timings),
    )


def page_content(
    results: Results, logs: list[Log], evidences: Sequence[Evidence], timings: Sequence[Timing]
) -> dict[str, Any]:
    """Everything the template shows."""
    inputs = input_panels(results, evidences)
    shown = [sample for panel in inputs for group in panel["groups"] for sample in group["samples"]]
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
        "panels": log_panels(results, logs, training_figure, steady),
        "rewiring": log_panels(results, logs, rewiring_figure),
        "budget_svg": budget_figure(results),
        "budgets": budget_table(results),
        "maps": class_maps(results, evidences),
        "costs": cost_panels(results, evidences),
        "inputs": inputs,
        "inputs_have_features": any(sample["features"] for sample in shown),
        "layers": layer_tables(results),
        "dependence": dependence_table(results),
        "proxies": proxy_table(results),
    }


def model_list(results: Results) -> list[dict[str, Any]]:
    """What each model is, in a few words, and whether it is a control."""
    first_data = {run["model"]: run["data"] for run in reversed(results["runs"])}
    styles = model_styles(run["model"] for run in results["runs"])
    return [
        {"name": name, "what": what, "mark": swatch(styles[name], control), "control": control}
        for name, what in known_models(results).items()
        for control in [is_control(results, first_data[name], name)]
    ]
