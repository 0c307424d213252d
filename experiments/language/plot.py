"""Bits per byte against executed MACs of a token, as a figure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean

from dynamicgate.lab.report.svg import (
    Scale,
    axes_of_picture,
    picture,
    polyline,
    push_apart,
    round_ticks,
    tag,
    tooltip,
    words,
)
from dynamicgate.lab.result_file import Run

WIDTH, HEIGHT = 760.0, 420.0
STYLE = "polyline{fill:none;stroke:#444;stroke-width:1.6}.gate{fill:#d11a2a;font-weight:600}"
COLOURS = {"dense": "#444", "gate": "#d11a2a"}
OTHERS = "#0067b0"


def plot_costs(name: str, rows: Mapping[str, Sequence[Run]]) -> str:
    """A point for each model; a line joins the dense ones. Lower is better, further left is cheaper."""
    points = {
        model: (fmean(r["macs"]["executed"] for r in runs) / 1e6, fmean(r["quality"]["bits_per_byte"] for r in runs))
        for model, runs in rows.items()
    }
    costs, heights = zip(*points.values(), strict=True)
    x = Scale(math.log(min(costs) * 0.93), math.log(max(costs) * 1.05), 64.0, WIDTH - 130.0)
    margin = 0.06 * (max(heights) - min(heights)) + 1e-3
    y = Scale(min(heights) - margin, max(heights) + margin, HEIGHT - 52.0, 30.0)
    ticks = [math.log(tick) for tick in round_ticks(0.93 * min(costs), 1.05 * max(costs), 6)]
    dense = sorted(point for model, point in points.items() if model.startswith("dense"))
    body = [
        axes_of_picture(
            x, y, ticks, lambda tick: f"{math.exp(tick):g}", "executed MACs of a token, millions", "bits per byte"
        ),
        polyline([(x(math.log(cost)), y(height)) for cost, height in dense]),
    ]
    order = sorted(points, key=lambda model: points[model][1])
    places = push_apart([y(points[model][1]) for model in order], 15.0, y.end, y.start)
    for model, place in zip(order, places, strict=True):
        cost, height = points[model]
        kind = model.split(" ")[0]
        at = x(math.log(cost)), y(height)
        colour = COLOURS.get(kind, OTHERS)
        body.append(tag("circle", tooltip(f"{model}: {height:.4f}"), cx=at[0], cy=at[1], r=4.0, fill=colour))
        body.append(words(at[0] + 9, place + 4, model, class_="gate" if kind == "gate" else None))
    label = f"Bits per byte against executed MACs on {name}"
    return picture(WIDTH, HEIGHT, label, *body, style=STYLE)
