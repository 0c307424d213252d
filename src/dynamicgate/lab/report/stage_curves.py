"""Figure: the accuracy-cost curve of each model in stages, against all models of the comparison."""

import math

from dynamicgate.lab.report.accuracy_plot import mean_labels, mean_point
from dynamicgate.lab.report.controls import is_control
from dynamicgate.lab.report.model_markers import colour_class, model_styles
from dynamicgate.lab.report.number_format import counted
from dynamicgate.lab.report.reading import Results
from dynamicgate.lab.report.stage_runs import curve_of, mean_curve, staged_groups
from dynamicgate.lab.report.summary import Row, summarise
from dynamicgate.lab.report.svg import (
    WIDE,
    LogScale,
    Scale,
    axes,
    decimals,
    drawing,
    log_ticks,
    polyline,
    round_ticks,
    tooltip,
    words,
)

Curve = list[tuple[float, float]]


def stage_figure(results: Results, dataset: str, width: float = WIDE) -> str:
    """The curve of each model in stages, thin for each seed and thick for their mean; each model's mean as a point."""
    curves: dict[str, dict[int, Curve]] = {
        model: {run["seed"]: curve for run in runs if len(curve := curve_of(run)) > 1}
        for (name, model), runs in staged_groups(results).items()
        if name == dataset
    }
    drawn = [curve for by_seed in curves.values() for curve in by_seed.values()]
    if not drawn:
        return ""
    on_dataset = [run for run in results["runs"] if run["data"] == dataset]
    rows = [
        row for row in summarise({"runs": on_dataset}) if (row["relative"]["mean"] or 0) > 0 and row["accuracy"]["n"]
    ]
    x, y = curve_scales(rows, drawn, width)
    x_ticks = [10**tick for tick in log_ticks(math.log10(x.low), math.log10(x.high))]
    y_ticks = round_ticks(y.low * 100, min(y.high, 1.0) * 100, 5)
    digits = decimals(y_ticks)
    body = [
        axes(
            x,
            y,
            x_ticks,
            [tick / 100 for tick in y_ticks],
            lambda tick: f"{tick:g}",
            lambda tick: f"{tick * 100:.{digits}f}",
        ),
        words(x.end, y.start + 40, "executed MACs, relative to dense, logarithmic", class_="axis", text_anchor="end"),
        words(8, 18, "accuracy, %", class_="axis"),
    ]
    styles = model_styles(run["model"] for run in results["runs"])
    for model, by_seed in curves.items():
        body += curve_lines(model, styles[model], by_seed, x, y, dashed=is_control(results, dataset, model))
    rows.sort(key=lambda row: not is_control(results, dataset, row["model"]))
    body += [
        mean_point(row, styles[row["model"]], x, y, control=is_control(results, dataset, row["model"])) for row in rows
    ]
    body.append(mean_labels(rows, styles, x, y))
    return drawing(width, y.start + 52, f"Accuracy against executed MACs as the cut moves, on {dataset}", *body)


def curve_scales(rows: list[Row], curves: list[Curve], width: float) -> tuple[LogScale, Scale]:
    """Cost from the cheapest curve or model to the most expensive; accuracy over its range, error bars included."""
    costs = [cost for curve in curves for cost, _ in curve] + [row["relative"]["mean"] for row in rows]
    qualities = [quality for curve in curves for _, quality in curve]
    for row in rows:
        qualities += [row["accuracy"]["mean"] + sign * row["accuracy"]["std"] for sign in (-1, 1)]
    low, high = min(qualities), max(qualities)
    margin = max(0.06 * (high - low), 0.0025)
    x = LogScale(min(costs) / 1.15, max(costs) * 1.15, 58.0, width - 12.0)
    return x, Scale(low - margin, high + margin, 372.0, 34.0)


def curve_lines(model: str, style: int, by_seed: dict[int, Curve], x: Scale, y: Scale, dashed: bool) -> list[str]:
    """A thin line for each seed and a thick one for their mean, dashed for controls."""
    mean = mean_curve(list(by_seed.values()))
    name = f"{model}, mean over {counted(len(by_seed), 'seed')}"
    lines = [("seed", f"{model}, seed {seed}", curve) for seed, curve in by_seed.items()]
    lines += [("average", name, mean)] if mean else []
    return [
        polyline(
            [(x(cost), y(quality)) for cost, quality in curve],
            tooltip(f"{text}: {describe_point(curve[0])} to {describe_point(curve[-1])} of the dense MACs"),
            class_=f"curve {css} {colour_class(style)}",
            stroke_dasharray="7 4" if dashed else None,
        )
        for css, text, curve in lines
    ]


def describe_point(point: tuple[float, float]) -> str:
    """A point of a curve in words."""
    cost, quality = point
    return f"{quality:.2%} at {cost:.3f}"
