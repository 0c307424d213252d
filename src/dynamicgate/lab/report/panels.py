"""The sections of the page that have one panel per model."""

from collections.abc import Callable, Sequence
from typing import Any

from dynamicgate.lab.report.classes import class_caption, class_figure
from dynamicgate.lab.report.costs import Evidence, class_costs, cost_caption, cost_figure, cost_range
from dynamicgate.lab.report.curves import Log
from dynamicgate.lab.report.inputs import class_names, shown_inputs
from dynamicgate.lab.report.models import is_control
from dynamicgate.lab.report.palette import model_styles, swatch
from dynamicgate.lab.report.reading import Results, Run, parts, texts
from dynamicgate.lab.report.summary import data_names, first_seed, group_runs
from dynamicgate.lab.report.tables import has_several_data, layer_table

Panel = dict[str, Any]


def group_title(results: Results, data: str, model: str) -> Panel:
    """What a panel about one model is called, with its marker."""
    styles = model_styles(run["model"] for run in results["runs"])
    name = f"{model}, {data}" if has_several_data(results) else model
    return {"name": name, "mark": swatch(styles[model], is_control(results, data, model))}


def log_panels(
    results: Results,
    logs: list[Log],
    figure: Callable[[str, int, list[Run], list[Log]], str],
    note: Callable[[list[Log]], str] = lambda logs: "",
) -> list[Panel]:
    """One panel per model whose logs have something to draw."""
    styles = model_styles(run["model"] for run in results["runs"])
    log_of = {id(run): log for run, log in zip(results["runs"], logs, strict=True)}
    found = []
    for (data, model), runs in group_runs(results).items():
        of_model = [log_of[id(run)] for run in runs]
        if svg := figure(model, styles[model], runs, of_model):
            found.append({**group_title(results, data, model), "svg": svg, "note": note(of_model)})
    return found


def shown_runs(results: Results, evidences: Sequence[Evidence]) -> list[tuple[str, str, Run, Evidence]]:
    """Of each (data, model) the run with seed 0, or the first one, and its evidence."""
    of_run = {id(run): evidence for run, evidence in zip(results["runs"], evidences, strict=True)}
    chosen = {name: first_seed(runs) for name, runs in group_runs(results).items()}
    return [(data, model, run, of_run[id(run)]) for (data, model), run in chosen.items()]


def class_maps(results: Results, evidences: Sequence[Evidence]) -> list[Panel]:
    """The heat maps of each gated model."""
    styles = model_styles(run["model"] for run in results["runs"])
    found = []
    for data, model, run, evidence in shown_runs(results, evidences):
        names, costs = class_names(evidence), class_costs(run, evidence)
        gates = [
            {"caption": class_caption(gate), "svg": svg}
            for gate in parts(run, "gates")
            if (svg := class_figure(gate, styles[model], names, costs))
        ]
        if gates:
            found.append({**group_title(results, data, model), "seed": run["seed"], "gates": gates})
    return found


def cost_panels(results: Results, evidences: Sequence[Evidence]) -> list[Panel]:
    """The histogram of each model whose samples do not all cost the same; one axis for all models of a data set."""
    styles = model_styles(run["model"] for run in results["runs"])
    shown = shown_runs(results, evidences)
    found = []
    for name in data_names(results):
        of_data = [(model, run, evidence) for data, model, run, evidence in shown if data == name]
        ranges = [ends for _, run, evidence in of_data if (ends := cost_range(run, evidence))]
        if not ranges:
            continue
        within = min(low for low, _ in ranges), max(high for _, high in ranges)
        for model, run, evidence in of_data:
            if svg := cost_figure(model, styles[model], run, evidence, within):
                title = group_title(results, name, model)
                found.append({**title, "seed": run["seed"], "svg": svg, "note": cost_caption(run, evidence)})
    return found


def input_panels(results: Results, evidences: Sequence[Evidence]) -> list[Panel]:
    """Easy and hard inputs: of the models that spend different amounts on them, or of all where none does."""
    shown = shown_runs(results, evidences)
    varied = {data for data, _, run, evidence in shown if cost_range(run, evidence)}
    return [
        {**group_title(results, data, model), "seed": run["seed"], "groups": groups}
        for data, model, run, evidence in shown
        if (data not in varied or cost_range(run, evidence)) and (groups := shown_inputs(run, evidence))
    ]


def layer_tables(results: Results) -> list[Panel]:
    """The per-layer table of each model that reports its layers, with what its measurement noted."""
    return [
        {**group_title(results, data, model), "table": table, **layer_notes(runs)}
        for (data, model), runs in group_runs(results).items()
        if (table := layer_table(runs)).rows
    ]


def layer_notes(runs: list[Run]) -> Panel:
    """The notes of one run, those of the others being alike, and how many runs have any."""
    noted = [run for run in runs if texts(run, "notes")]
    if not noted:
        return {"notes": [], "noted": ""}
    shown = first_seed(noted)
    several = f"Noted in {len(noted)} of {len(runs)} runs; in that of seed {shown['seed']}:"
    return {"notes": texts(shown, "notes"), "noted": several if len(runs) > 1 else ""}
