"""Which connections were tried over training, from the logs: exploration and churn of each rewired layer."""

from collections.abc import Iterable

from dynamicgate.lab.report.curves import Line, Log, Strip, curve, last_step, panel
from dynamicgate.lab.report.palette import colour_class
from dynamicgate.lab.report.reading import Run, part
from dynamicgate.lab.report.summary import number


def rewiring_figure(model: str, style: int, runs: list[Run], logs: list[Log]) -> str:
    """One panel: of each layer and seed the share of weights ever active (solid) and of connections replaced at the
    last update (dashed); nothing where no log knows of rewiring, or connections stayed where they were."""
    layers = list(dict.fromkeys(layer for log in logs for entry in log for layer in part(entry, "rewiring")))
    lines: list[Line] = []
    for run, log in zip(runs, logs, strict=True):
        for index, layer in enumerate(layers):
            seen = [part(part(entry, "rewiring"), layer) for entry in log]
            # The colour is the model's and dashes tell churn from exploration: deeper layers are thinner.
            thinner = f"stroke-width:{max(0.8, 2.4 - 0.6 * index):.1f}"
            density = last(number(row.get("density")) for row in seen)
            for key, name in (("explored", layer), ("churn", f"churn {layer}")):
                values = [number(row.get(key)) for row in seen]
                ending = last(values)
                told = f"{layer} {key}, seed {run['seed']}"
                told += f": {ending:.1%} in the end" if ending is not None else ""
                told += f", density {density:.1%}" if density is not None else ""
                lines.append(Line(name, told, f"{key} {colour_class(style)}", curve(log, values), style=thinner))
    if not any(len({value for _, value in item.points}) > 1 for item in lines):
        return ""
    label = f"Weights explored and connections replaced over training: {model}"
    return panel(label, [Strip(lines)], last_step(logs))


def last(values: Iterable[float | None]) -> float | None:
    """The last value that is there."""
    return next((value for value in reversed(list(values)) if value is not None), None)
