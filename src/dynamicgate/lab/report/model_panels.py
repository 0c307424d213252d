"""The sections of the page that have one panel per model."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from dynamicgate.lab.report.class_heatmap import heatmap_caption, heatmap_figure
from dynamicgate.lab.report.controls import is_control
from dynamicgate.lab.report.example_inputs import class_names, example_groups
from dynamicgate.lab.report.model_markers import model_styles, swatch
from dynamicgate.lab.report.reading import Log, Results, Run, SampleStats, gates_in, get_strings
from dynamicgate.lab.report.sample_costs import class_costs, cost_caption, cost_histogram, cost_range
from dynamicgate.lab.report.summary import dataset_names, first_seed, group_runs, has_several_datasets
from dynamicgate.lab.report.svg import for_every_screen
from dynamicgate.lab.report.tables import layer_table

Panel = dict[str, Any]


def panel_title(results: Results, dataset: str, model: str) -> Panel:
    """The title of a panel about one model, with the model's marker."""
    styles = model_styles(run["model"] for run in results["runs"])
    name = f"{model}, {dataset}" if has_several_datasets(results) else model
    return {"name": name, "mark": swatch(styles[model], is_control(results, dataset, model))}


def log_panels(
    results: Results,
    logs: list[Log],
    figure: Callable[[str, int, list[Run], list[Log]], str],
    note: Callable[[list[Log]], str] = lambda logs: "",
) -> list[Panel]:
    """One panel for each model for which `figure` has something to draw."""
    styles = model_styles(run["model"] for run in results["runs"])
    log_of = {id(run): log for run, log in zip(results["runs"], logs, strict=True)}
    found = []
    for (dataset, model), runs in group_runs(results).items():
        model_logs = [log_of[id(run)] for run in runs]
        if svg := figure(model, styles[model], runs, model_logs):
            found.append({**panel_title(results, dataset, model), "svg": svg, "note": note(model_logs)})
    return found


def shown_runs(results: Results, all_stats: Sequence[SampleStats]) -> list[tuple[str, str, Run, SampleStats]]:
    """For each (dataset, model) the run with seed 0, or the first one, and its sample statistics."""
    stats_of = {id(run): stats for run, stats in zip(results["runs"], all_stats, strict=True)}
    chosen = {name: first_seed(runs) for name, runs in group_runs(results).items()}
    return [(dataset, model, run, stats_of[id(run)]) for (dataset, model), run in chosen.items()]


def heatmap_panels(results: Results, all_stats: Sequence[SampleStats]) -> list[Panel]:
    """The heat maps of each gated model."""
    styles = model_styles(run["model"] for run in results["runs"])
    found = []
    for dataset, model, run, stats in shown_runs(results, all_stats):
        names, costs = class_names(stats), class_costs(run, stats)
        gates = [
            {"caption": heatmap_caption(gate), "svg": svg}
            for gate in gates_in(run)
            if (svg := for_every_screen(partial(heatmap_figure, gate, styles[model], names, costs)))
        ]
        if gates:
            found.append({**panel_title(results, dataset, model), "seed": run["seed"], "gates": gates})
    return found


def cost_panels(results: Results, all_stats: Sequence[SampleStats]) -> list[Panel]:
    """The histogram of each model whose samples do not all cost the same; one axis for all models of a dataset."""
    styles = model_styles(run["model"] for run in results["runs"])
    shown = shown_runs(results, all_stats)
    found = []
    for name in dataset_names(results):
        on_dataset = [(model, run, stats) for dataset, model, run, stats in shown if dataset == name]
        ranges = [ends for _, run, stats in on_dataset if (ends := cost_range(run, stats))]
        if not ranges:
            continue
        within = min(low for low, _ in ranges), max(high for _, high in ranges)
        for model, run, stats in on_dataset:
            if svg := cost_histogram(model, styles[model], run, stats, within):
                title = panel_title(results, name, model)
                found.append({**title, "seed": run["seed"], "svg": svg, "note": cost_caption(run, stats)})
    return found


def example_panels(results: Results, all_stats: Sequence[SampleStats]) -> list[Panel]:
    """Easy and hard inputs: of the models that spend different amounts on them, or of all models where none does."""
    shown = shown_runs(results, all_stats)
    varied = {dataset for dataset, _, run, stats in shown if cost_range(run, stats)}
    return [
        {**panel_title(results, dataset, model), "seed": run["seed"], "groups": groups}
        for dataset, model, run, stats in shown
        if (dataset not in varied or cost_range(run, stats)) and (groups := example_groups(run, stats))
    ]


def layer_panels(results: Results) -> list[Panel]:
    """The per-layer table of each model that reports its layers, with the notes of its measurement."""
    return [
        {**panel_title(results, dataset, model), "table": table, **layer_notes(runs)}
        for (dataset, model), runs in group_runs(results).items()
        if (table := layer_table(runs)).rows
    ]


def layer_notes(runs: list[Run]) -> Panel:
    """The notes of one run (those of the others are much the same), and how many runs have any."""
    noted = [run for run in runs if get_strings(run, "notes")]
    if not noted:
        return {"notes": [], "notes_title": ""}
    shown = first_seed(noted)
    title = f"{len(noted)} of {len(runs)} runs have notes; those of seed {shown['seed']}:"
    return {"notes": get_strings(shown, "notes"), "notes_title": title if len(runs) > 1 else ""}
