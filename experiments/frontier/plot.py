"""Accuracy against cost as a figure: one line for each method, cost on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dynamicgate.lab.report.svg import Scale, axes_of_picture, picture, polyline, push_apart, tag, tooltip, words
from experiments.frontier.comparisons import Entries
from experiments.frontier.methods import (
    AT_A_BUDGET,
    BUDGETS,
    OURS,
    OURS_IN_TILES,
    PRUNED_IN_TILES,
    UNGATED,
    UNGATED_IN_TILES,
)

WIDTH, HEIGHT = 760.0, 420.0
COLOURS = {
    "small": "#8a8a8a", "pruned": "#4f7f00", "static": "#c05000", "random": "#7a4a2a", "rigl": "#a07000",
    "set": "#00857a", "gate": "#0067b0", OURS: "#4f3fa8", OURS_IN_TILES: "#9a8fdc", UNGATED: "#d11a2a",
    "switch": "#b0257a", UNGATED_IN_TILES: "#e58a92", PRUNED_IN_TILES: "#9dbb6a",
}  # fmt: skip
STYLE = "polyline{fill:none;stroke-width:1.6}.ours{stroke-width:3.2}.name{font-weight:600}"


Points = Sequence[tuple[float, float]]
"""Cost of a model relative to dense, and its accuracy in points."""


def by_cost(name: str, entries: Entries) -> str:
    """Accuracy against executed MACs on one dataset."""
    lines = {
        method: sorted(
            (entries[method, b].relative, entries[method, b].accuracy.mean) for b in BUDGETS if (method, b) in entries
        )
        for method in AT_A_BUDGET
    }
    label = f"Accuracy against executed MACs on {name}"
    return plot(lines, dense_accuracy(entries), BUDGETS, "executed MACs, relative to dense", label)


def dense_accuracy(entries: Entries) -> float | None:
    """The accuracy of the network that costs are relative to, in points."""
    return entries["dense", None].accuracy.mean if ("dense", None) in entries else None


def plot(lines: Mapping[str, Points], dense: float | None, ticks: Sequence[float], x_label: str, label: str) -> str:
    """The frontier of every method that has points; the dashed line is the dense network."""
    lines = {method: points for method, points in lines.items() if points}
    heights = [y for points in lines.values() for _, y in points] + ([dense] if dense is not None else [])
    widths = [x for points in lines.values() for x, _ in points] + list(ticks)
    # A method that fails altogether would squeeze all others together: its line is cut off at the lower edge.
    low = max(min(heights), sorted(heights)[len(heights) // 2] - 12.0)
    x = Scale(math.log(min(widths) * 0.85), math.log(max(widths) * 1.15), 56.0, WIDTH - 112.0)
    y = Scale(low - 0.5, max(heights) + 0.5, HEIGHT - 52.0, 30.0)
    at = [math.log(tick) for tick in ticks]
    body = [axes_of_picture(x, y, at, lambda tick: f"{math.exp(tick):g}", x_label, "accuracy, %")]
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
                class_="ours" if method in (OURS, OURS_IN_TILES) else None,
            )
        )
        body += [tag("circle", cx=px, cy=py, r=3.2, fill=COLOURS[method]) for px, py in points]
    ends = push_apart([points[-1][1] for points in inside.values()], 15.0, y.end, y.start)
    for method, height in zip(inside, ends, strict=True):  # in a column: costs end anywhere
        body.append(words(x.end + 8, height + 4, method, style=f"fill:{COLOURS[method]}", class_="name"))
    return picture(WIDTH, HEIGHT, label, *body, style=STYLE)
