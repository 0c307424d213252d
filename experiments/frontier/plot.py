"""Accuracy against cost as a drawing: one line for each method, cost on a logarithmic axis."""

from __future__ import annotations

import math
from statistics import fmean

from dynamicgate.report.svg import Scale, axes, decimals, polyline, push_apart, round_ticks, tag, tooltip, words

from .cells import Cells
from .sets import AT_A_BUDGET, BUDGETS, OURS, OURS_IN_CELLS

WIDTH, HEIGHT = 760.0, 420.0
COLOURS = {
    "small": "#8a8a8a", "pruned": "#4f7f00", "static": "#c05000", "random": "#7a4a2a", "rigl": "#a07000",
    "set": "#00857a", "gate": "#0067b0", OURS: "#4f3fa8", OURS_IN_CELLS: "#9a8fdc",
    "switch": "#b0257a", "dense": "#444444",
}  # fmt: skip
STYLE = (
    "text{font:13px sans-serif;fill:#444}.grid{stroke:#e4e4e4}.base{stroke:#999}polyline{fill:none;stroke-width:1.6}"
    ".ours{stroke-width:3.2}.name{font-weight:600}"
)


def plot(name: str, cells: Cells) -> str:
    """The frontier of every method on one data set; the dashed line is the dense network."""
    lines = {
        method: [(fmean(cells[method, b].relative), cells[method, b].mean) for b in BUDGETS if (method, b) in cells]
        for method in AT_A_BUDGET
    }
    lines = {method: sorted(points) for method, points in lines.items() if points}
    dense = cells["dense", None].mean if ("dense", None) in cells else None
    heights = [y for points in lines.values() for _, y in points] + ([dense] if dense is not None else [])
    # A method that fails altogether would press all others together: it leaves the drawing at its lower edge.
    low = max(min(heights), sorted(heights)[len(heights) // 2] - 12.0)
    x = Scale(math.log(min(BUDGETS) * 0.85), math.log(max(BUDGETS) * 1.15), 56.0, WIDTH - 96.0)
    y = Scale(low - 0.5, max(heights) + 0.5, HEIGHT - 52.0, 30.0)
    ticks = round_ticks(y.low, y.high, 6)
    digits = decimals(ticks)
    body = [
        tag("style", STYLE),
        axes(x, y, [math.log(b) for b in BUDGETS], ticks, lambda t: f"{math.exp(t):g}", lambda t: f"{t:.{digits}f}"),
        words(x.end, y.start + 40, "executed MACs, relative to dense", text_anchor="end"),
        words(8, 16, "accuracy, %"),
    ]
    if dense is not None:
        body.append(polyline([(x.start, y(dense)), (x.end, y(dense))], stroke="#444", stroke_dasharray="5 4"))
    inside = {
        method: [(x(math.log(cost)), min(y.start, y(height))) for cost, height in points]
        for method, points in lines.items()
    }
    for method, points in inside.items():
        body.append(
            polyline(
                points,
                tooltip(method),
                stroke=COLOURS[method],
                class_="ours" if method in (OURS, OURS_IN_CELLS) else None,
            )
        )
        body += [tag("circle", cx=px, cy=py, r=3.2, fill=COLOURS[method]) for px, py in points]
    ends = push_apart([points[-1][1] for points in inside.values()], 15.0, y.end, y.start)
    for (method, points), height in zip(inside.items(), ends, strict=True):
        body.append(words(points[-1][0] + 10, height + 4, method, style=f"fill:{COLOURS[method]}", class_="name"))
    white = tag("rect", width=WIDTH, height=HEIGHT, fill="#ffffff")
    size = f"0 0 {WIDTH:.0f} {HEIGHT:.0f}"
    label = f"Accuracy against executed MACs on {name}"
    drawn = tag("svg", white, *body, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img", aria_label=label)
    return f"{drawn}\n"
