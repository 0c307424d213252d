"""Figures of continual learning: the accuracy matrix as a heat map, accuracy by age, forgetting against overlap."""

from collections.abc import Mapping, Sequence
from typing import Any

from dynamicgate.lab.report.model_markers import colour_class
from dynamicgate.lab.report.number_format import shorten
from dynamicgate.lab.report.svg import (
    Scale,
    axes,
    decimals,
    drawing,
    polyline,
    push_apart,
    round_ticks,
    tag,
    tooltip,
    words,
)

Matrix = Sequence[Sequence[float | None]]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640.0, 300.0, 60.0, 150.0, 16.0, 46.0


def matrix_figure(name: str, matrix: Matrix, style: int) -> str:
    """Rows are tasks learned, columns tasks tested. The stronger the colour, the higher the accuracy: the same scale
    for all models, from 0 to 1."""
    count = len(matrix)
    cell = float(max(3, min(34, 480 // max(1, count))))
    gap = 1.0 if cell >= 10 else 0.0
    left, top = 54.0, 30.0
    body = [words(left, top - 12, "tested on task", class_="tick")]
    every = max(1, count // 10)
    for i, row in enumerate(matrix):
        if i % every == 0:
            middle = top + (i + 0.5) * cell + 4
            body.append(words(left - 8, middle, str(i + 1), class_="tick", text_anchor="end"))
        for j, value in enumerate(row):
            if value is None:
                continue
            said = tooltip(f"{name}: after task {i + 1}, {value:.2%} on task {j + 1}")
            at = {"x": left + j * cell, "y": top + i * cell, "width": cell - gap, "height": cell - gap}
            body.append(tag("rect", said, **at, fill_opacity=f"{min(max(value, 0.0), 1.0):.3g}", class_="heat"))
    size = max(300.0, left + count * cell + 4), top + count * cell + 4
    label = f"Accuracy of {name} after each task (rows) on each task (columns)"
    return drawing(*size, label, *body, class_=f"plot natural {colour_class(style)}", marks_per_row=count)


def age_figure(curves: Mapping[str, Sequence[float]], styles: Mapping[str, int]) -> str:
    """Accuracy after the last task, from the task learned last to the first one."""
    longest = max((len(curve) for curve in curves.values()), default=0)
    if longest < 2:
        return ""
    return _lines(
        {name: [(float(age), value) for age, value in enumerate(curve)] for name, curve in curves.items()},
        styles, "tasks learned since", "Accuracy by age of a task",
    )  # fmt: skip


def task_figure(curves: Mapping[str, Sequence[float]], styles: Mapping[str, int], label: str) -> str:
    """One number a task, along the stream."""
    points = {name: [(float(n + 1), v) for n, v in enumerate(curve)] for name, curve in curves.items() if curve}
    return _lines(points, styles, "task", label) if points else ""


def overlap_figure(dots: Mapping[str, Sequence[tuple[float, float]]], styles: Mapping[str, int]) -> str:
    """One dot a task: how much its open units overlap with those of later tasks, and what was forgotten of it."""
    every = [dot for found in dots.values() for dot in found]
    if not every:
        return ""
    x = Scale(0.0, 1.0, LEFT, WIDTH - RIGHT)
    lows = [forgotten for _, forgotten in every]
    y = Scale(min(0.0, *lows) - 0.01, max(0.05, *lows) + 0.01, HEIGHT - BOTTOM, TOP)
    ticks = round_ticks(y.low, y.high, 4)
    digits = decimals(ticks)
    body = [axes(x, y, (0.0, 0.25, 0.5, 0.75, 1.0), ticks, lambda v: f"{v:.2f}", lambda v: f"{v:.{digits}f}")]
    for name, found in dots.items():
        css = colour_class(styles[name])
        body += [
            tag("circle", tooltip(f"{name}: overlap {at:.2f}, forgotten {lost:.3f}"), cx=x(at), cy=y(lost), r=4.0,
                class_=f"{css} heat", fill_opacity="0.7")
            for at, lost in found
        ]  # fmt: skip
    body += _names({name: y(found[-1][1]) for name, found in dots.items() if found}, styles, x, y)
    body.append(words(x.end, HEIGHT - 8, "overlap of open units with later tasks", class_="axis", text_anchor="end"))
    return drawing(WIDTH, HEIGHT, "Forgetting of a task against the overlap of its units", *body, class_="plot panel")


def _lines(
    points: Mapping[str, Sequence[tuple[float, float]]], styles: Mapping[str, int], axis: str, label: str
) -> str:
    values = [value for found in points.values() for _, value in found]
    longest = max(at for found in points.values() for at, _ in found)
    first = min(at for found in points.values() for at, _ in found)
    x = Scale(first, max(longest, first + 1.0), LEFT, WIDTH - RIGHT)
    margin = max(0.02, 0.06 * (max(values) - min(values)))
    y = Scale(min(values) - margin, max(values) + margin, HEIGHT - BOTTOM, TOP)
    ticks, x_ticks = round_ticks(y.low, y.high, 4), round_ticks(x.low, x.high, 5)
    digits = decimals(ticks)
    body = [axes(x, y, x_ticks, ticks, lambda v: f"{v:g}", lambda v: f"{v:.{digits}f}")]
    for name, found in points.items():
        where = [(x(at), y(value)) for at, value in found]
        body.append(polyline(where, tooltip(name), class_=f"curve {colour_class(styles[name])}"))
    body += _names({name: y(found[-1][1]) for name, found in points.items()}, styles, x, y)
    body.append(words(x.end, HEIGHT - 8, axis, class_="axis", text_anchor="end"))
    return drawing(WIDTH, HEIGHT, label, *body, class_="plot panel")


def _names(ends: Mapping[str, float], styles: Mapping[str, int], x: Scale, y: Scale) -> list[str]:
    heights: Any = push_apart(list(ends.values()), 16.0, y.end, y.start)
    return [
        words(x.end + 10, height + 4, shorten(name, 18), class_=f"small label {colour_class(styles[name])}")
        for name, height in zip(ends, heights, strict=True)
    ]
