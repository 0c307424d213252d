"""Two figures: accuracy over a long stream, and accuracy by the age of a task where there is room for few."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from dynamicgate.lab.report.svg import (
    Scale,
    axes_of_picture,
    picture,
    polyline,
    push_apart,
    round_ticks,
    tooltip,
    words,
)
from experiments.continual.shown import Rows

WIDTH, HEIGHT = 760.0, 400.0
STYLE = "polyline{fill:none;stroke-width:2}"
SHOWN = {  # of the methods of e5: those that a reader asks for, ours in red
    "set + recycling": "#d11a2a", "continual backprop": "#0067b0", "redo": "#5a9bd4", "l2 init": "#2a7f3e",
    "dense": "#444444", "rigl": "#b8860b", "layer norm": "#8a5fb0",
}  # fmt: skip
SMOOTHED = 10  # tasks that a point is the mean of


def plot_ageing(rows: Rows) -> str:
    """Accuracy on new rows, task after task: a network that grows old falls."""
    curves: dict[str, list[list[float]]] = {}
    for runs in rows.values():
        curves |= runs[0]["quality"]["online"]
    lines = {name: blocks([fmean(at) for at in zip(*curves[name], strict=True)]) for name in SHOWN if name in curves}
    return draw(lines, SMOOTHED, "tasks learned", "accuracy on rows before the step on them, %", SHOWN)


def plot_capacity(rows: Rows) -> str:
    """Accuracy by age: what there is room for is as it was, what is older is gone."""
    ages = [run["quality"]["by_age"] for run in rows["keep"]]
    lines = {"keep": blocks([fmean(at) for at in zip(*ages, strict=True)])}
    return draw(lines, SMOOTHED, "tasks learned since", "accuracy on a task, %", {"keep": "#d11a2a"})


def blocks(values: Sequence[float]) -> list[float]:
    """Means of so many values in a row, in points."""
    size = min(SMOOTHED, len(values))
    return [100 * fmean(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]


def draw(lines: Mapping[str, Sequence[float]], step: int, below: str, beside: str, colours: Mapping[str, str]) -> str:
    """Lines over the same tasks, each with its name at its end."""
    values = [value for line in lines.values() for value in line]
    longest = max(len(line) for line in lines.values())
    margin = 0.05 * (max(values) - min(values)) + 0.1
    x = Scale(0.0, float(step * longest), 56.0, WIDTH - 140.0)
    y = Scale(min(values) - margin, max(values) + margin, HEIGHT - 52.0, 30.0)
    body = [axes_of_picture(x, y, round_ticks(0.0, x.high, 8), lambda tick: f"{tick:g}", below, beside)]
    names = list(lines)
    places = push_apart([y(lines[name][-1]) for name in names], 15.0, y.end, y.start)
    for name, place in zip(names, places, strict=True):
        points = [(x(step * (at + 0.5)), y(value)) for at, value in enumerate(lines[name])]
        body.append(polyline(points, tooltip(f"{name}: {lines[name][-1]:.2f} at the end"), stroke=colours[name]))
        body.append(words(x.end + 8, place + 4, name, fill=colours[name]))
    return picture(WIDTH, HEIGHT, beside, *body, style=STYLE)
