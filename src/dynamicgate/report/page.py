"""The page: one self-contained HTML file made from results.json and the training logs."""

import os
from pathlib import Path
from typing import Any

from .classes import class_caption, class_figure
from .headline import headlines
from .palette import model_styles, swatch
from .read import Results, part, parts, read_logs, read_results
from .summary import caveats, first_seed, group_runs, is_gated, number
from .tables import budget_table, dependence_table, has_several_data, layer_table, proxy_table, summary_table
from .tradeoff import accuracy_figure, budget_figure
from .training import Log, training_figure
from .wording import counted, date

HERE = Path(__file__).parent


def write_report(folder: Path) -> Path:
    """Write ``folder/report.html`` from ``folder/results.json`` and the runs' logs; returns its path.

    The file appears whole or not at all.
    """
    folder = Path(folder)
    results = read_results(folder)
    page = render_page(results, read_logs(folder, results))
    path = folder / "report.html"
    unfinished = folder / f".report.html.{os.getpid()}.tmp"
    try:
        unfinished.write_text(page, encoding="utf-8", errors="replace")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def render_page(results: Results, logs: list[Log]) -> str:
    """The HTML of the report; ``logs`` are in the order of the runs."""
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
        **page_content(results, logs),
    )


def page_content(results: Results, logs: list[Log]) -> dict[str, Any]:
    """Everything the template shows."""
    return {
        **heading(results),
        "headlines": headlines(results),
        "several_data": has_several_data(results),
        "caveats": caveats(results),
        "summary": summary_table(results),
        "tradeoffs": [
            {"name": data, "svg": svg} for data in data_names(results) if (svg := accuracy_figure(results, data))
        ],
        "panels": training_panels(results, logs),
        "budget_svg": budget_figure(results),
        "budgets": budget_table(results),
        "maps": class_maps(results),
        "layers": layer_tables(results),
        "dependence": dependence_table(results),
        "proxies": proxy_table(results),
    }


def heading(results: Results) -> dict[str, Any]:
    """The title and where the numbers come from; what is unknown is left out."""
    meta = part(results, "meta")
    data, machine = part(meta, "data"), part(meta, "machine")
    budget = number(meta.get("budget"))
    sizes = [
        f"{data[key]:,} {word}"
        for key, word in (("train", "train"), ("valid", "validation"), ("test", "test"))
        if isinstance(data.get(key), int)
    ]
    shape = [counted(data[key], noun) for key, noun in (("features", "feature"),) if isinstance(data.get(key), int)]
    if isinstance(data.get("classes"), int):
        shape.append(f"{data['classes']:,} classes")
    majority = number(data.get("majority"))
    place = [str(machine[key]) for key in ("system", "arch") if machine.get(key)]
    place += [
        counted(machine[key], noun)
        for key, noun in (("cores", "core"), ("threads", "thread"))
        if isinstance(machine.get(key), int)
    ]
    training = [counted(meta["epochs"], "epoch")] if isinstance(meta.get("epochs"), int) else []
    if isinstance(meta.get("hidden"), list):
        training.append("hidden " + " – ".join(str(width) for width in meta["hidden"]))
    if isinstance(meta.get("seeds"), list):
        training.append("seeds " + ", ".join(str(seed) for seed in meta["seeds"]))
    facts = [
        ("budget asked", f"{budget:.2f} of the dense MACs" if budget is not None else ""),
        ("samples", ", ".join(sizes)),
        ("task", ", ".join(shape)),
        ("majority class", f"{majority * 100:.2f} %" if majority is not None else ""),
        ("training", ", ".join(training)),
        ("machine", ", ".join(place)),
        ("versions", ", ".join(f"{name} {version}" for name, version in part(meta, "versions").items())),
        ("commit", str(meta.get("commit") or "")),
        ("made", date(meta["created"]) if meta.get("created") else ""),
    ]
    names = data_names(results)
    return {
        "title": ", ".join(names) + (f" at a budget of {budget:.2f}" if budget is not None else ""),
        "facts": [(name, value) for name, value in facts if value],
        "command": str(meta.get("command") or ""),
    }


def data_names(results: Results) -> list[str]:
    """The data sets, in the order in which they first appear."""
    return list(dict.fromkeys(run["data"] for run in results["runs"]))


def group_title(results: Results, data: str, model: str) -> dict[str, str]:
    """What a panel about one model is called, with its marker."""
    styles = model_styles(run["model"] for run in results["runs"])
    return {"name": f"{model}, {data}" if has_several_data(results) else model, "mark": swatch(styles[model])}


def training_panels(results: Results, logs: list[Log]) -> list[dict[str, str]]:
    """One panel per model whose logs show gates."""
    styles = model_styles(run["model"] for run in results["runs"])
    log_of = {id(run): log for run, log in zip(results["runs"], logs, strict=True)}
    found = []
    for (data, model), runs in group_runs(results).items():
        own = [log_of[id(run)] for run in runs]
        if not is_gated(runs) and not any(part(entry, "sites") for log in own for entry in log):
            continue
        if svg := training_figure(model, styles[model], runs, own):
            found.append({**group_title(results, data, model), "svg": svg})
    return found


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
    """The per-layer table of each model that reports its layers."""
    return [
        {**group_title(results, data, model), "table": table}
        for (data, model), runs in group_runs(results).items()
        if (table := layer_table(runs)).rows
    ]
