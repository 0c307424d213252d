"""Bits per byte against what a token costs, and against what training cost so far, as figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean

from dynamicgate.lab.language.ffn_methods import FFNSettings
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
from experiments.language.rows import Rows
from experiments.language.tables import GATE

WIDTH, HEIGHT = 760.0, 420.0
STYLE = "polyline{fill:none;stroke:#444;stroke-width:1.6}.gate{fill:#d11a2a;font-weight:600}"
COLOURS = {"dense": "#444", "gate": "#d11a2a"}
OTHERS = "#0067b0"
LINES = {  # of models that are compared in training
    "dense 1d": "#b0b0b0", "dense 4d": "#777", "dense 8d": "#222", "top-k 16d": "#c05000", "router 16d": "#0067b0",
    GATE: "#d11a2a",
}  # fmt: skip
EARLY = 0.25  # of training, in which losses fall so far that nothing else could be seen


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


def plot_training(name: str, rows: Rows) -> str:
    """The loss on training text, the mean over seeds, against the MACs that training took so far."""
    lines = {model: training_line(rows[model]) for model in LINES if model in rows}
    late = {model: [point for point in line if point[0] >= EARLY * line[-1][0]] for model, line in lines.items()}
    if not late:
        return ""
    heights = [height for line in late.values() for _, height in line]
    most = max(line[-1][0] for line in lines.values())
    x = Scale(0.0, most, 64.0, WIDTH - 110.0)
    y = Scale(min(heights) - 0.01, max(heights) + 0.01, HEIGHT - 52.0, 30.0)
    ticks = round_ticks(0.0, most, 6)
    label = "MACs of training, 10¹⁵"
    body = [axes_of_picture(x, y, ticks, lambda tick: f"{tick:g}", label, "loss on training text, bits per token")]
    for model, line in late.items():
        drawn = [(x(cost), y(height)) for cost, height in line]
        body.append(polyline(drawn, tooltip(model), style=f"stroke:{LINES[model]}"))
        body.append(tag("circle", cx=drawn[-1][0], cy=drawn[-1][1], r=3.5, fill=LINES[model]))
    ends = push_apart([y(line[-1][1]) for line in late.values()], 15.0, y.end, y.start)
    for model, height in zip(late, ends, strict=True):  # in a column: training ends anywhere
        body.append(words(x.end + 10, height + 4, model, style=f"fill:{LINES[model]};font-weight:600"))
    return picture(WIDTH, HEIGHT, f"Loss against MACs of training on {name}", *body, style=STYLE)


def training_line(runs: Sequence[Run]) -> list[tuple[float, float]]:
    """Points of MACs so far, in 10^15, and bits per token, the mean over runs of equal length."""
    costs = [spent(run) for run in runs]
    losses = [[point[1] / math.log(2) for point in run["curve"]] for run in runs]
    return [
        (fmean(cost) / 1e15, fmean(loss))
        for cost, loss in zip(zip(*costs, strict=True), zip(*losses, strict=True), strict=True)
    ]


def spent(run: Run) -> list[float]:
    """The MACs of training up to every point of the curve. Their sum is stored; where a budget falls, a step costs what
    it saw executed then: three times, and once what was closed where gates learn from closed blocks."""
    curve, macs = run["curve"], run["macs"]
    exact = FFNSettings(**run["settings"]["ffn"]).learns_from_closed_blocks
    steps = [point[0] - before for point, before in zip(curve, [0, *(point[0] for point in curve)], strict=False)]
    each = []
    for point, count in zip(curve, steps, strict=True):
        executed = macs["dense"] * (point[2] if len(point) > 2 else 1.0)
        each.append(count * (3.0 * executed + (macs["dense"] + macs["gate"] - executed if exact else 0.0)))
    whole = run["settings"]["steps"] / curve[-1][0]  # the last steps may be after the last point
    so_far = list(accumulate(each))
    return [macs["training"] * part / (so_far[-1] * whole) for part in so_far]
