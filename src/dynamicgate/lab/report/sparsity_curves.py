"""Dynamic sparse training, from the logs: which weights each sparse layer has explored, and how many were replaced."""

from collections.abc import Iterable

from dynamicgate.lab.report.line_plot import Line, Strip, binned_curve, draw_line_plot, last_step
from dynamicgate.lab.report.model_markers import colour_class
from dynamicgate.lab.report.reading import Log, Run, get_object, sparsity_of
from dynamicgate.lab.report.run_metrics import number


def sparsity_figure(model: str, style: int, runs: list[Run], logs: list[Log]) -> str:
    """One panel: for each layer and seed the fraction of weights that were ever active, and below it the fraction of
    connections that the last update replaced; empty where no log has such numbers, or the masks never
    changed."""
    layers = list(dict.fromkeys(layer for log in logs for entry in log for layer in sparsity_of(entry)))
    lines: dict[str, list[Line]] = {"explored": [], "churn": []}
    for run, log in zip(runs, logs, strict=True):
        for index, layer in enumerate(layers):
            rows = [get_object(sparsity_of(entry), layer) for entry in log]
            # Colour tells models apart: deeper layers are thinner.
            stroke = f"stroke-width:{max(0.8, 2.4 - 0.6 * index):.1f}"
            density = last_value(number(row.get("density")) for row in rows)
            for key, found in lines.items():
                values = [number(row.get(key)) for row in rows]
                end = last_value(values)
                text = f"{layer} {key}, seed {run['seed']}"
                text += f": {end:.1%} at the end" if end is not None else ""
                text += f", density {density:.1%}" if density is not None else ""
                curve = binned_curve(log, values)
                found.append(Line(layer, text, f"{key} {colour_class(style)}", curve, style=stroke))
    if not any(len({value for _, value in line.points}) > 1 for found in lines.values() for line in found):
        return ""
    label = f"Weights explored and connections replaced over training: {model}"
    strips = [
        Strip(lines["explored"], "weights that were ever active", 150.0),
        Strip(lines["churn"], "connections replaced by an update", 84.0, is_fraction=False),
    ]
    return draw_line_plot(label, strips, last_step(logs))


def last_value(values: Iterable[float | None]) -> float | None:
    """The last value that is not None."""
    return next((value for value in reversed(list(values)) if value is not None), None)
