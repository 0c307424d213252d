"""Open rates over training, from the logs."""

from typing import Any

from .palette import colour_class
from .read import Run, part
from .summary import number, spread
from .svg import Scale, axes, drawing, polyline, push_apart, tooltip, words
from .wording import shorten

Log = list[dict[str, Any]]
Curve = list[tuple[float, float]]

WIDTH = 480.0
BINS = 100
DASHES = (None, "7 4", "2 3", "10 3 2 3", "5 2 1 2 1 2")


def training_figure(model: str, style: int, runs: list[Run], logs: list[Log]) -> str:
    """One panel: mean g of each site and seed, the executed cost seen in training, and its target."""
    lines: list[tuple[str, str, str, str | None, Curve]] = []
    sites = list(dict.fromkeys(site for log in logs for entry in log for site in part(entry, "sites")))
    for run, log in zip(runs, logs, strict=True):
        for index, site in enumerate(sites):
            opened = curve(log, [number(part(part(entry, "sites"), site).get("g")) for entry in log])
            told = f"{site} open, seed {run['seed']}"
            lines.append((site, told, f"open {colour_class(style)}", DASHES[index % len(DASHES)], opened))
        for key, name, look in (("relative", "executed", "relative"), ("reference", "target", "target")):
            told = f"{name}, seed {run['seed']}"
            lines.append((name, told, look, None, curve(log, [number(entry.get(key)) for entry in log])))
    lines = [item for item in lines if len(item[-1]) > 1]
    if not lines:
        return ""
    names = list(dict.fromkeys(item[0] for item in lines))
    bottom = max(230.0, 34.0 + 16.0 * len(names))
    highest = max(1.0, *(value for item in lines for _, value in item[-1]))
    x, y = Scale(0.0, 1.0, 38.0, WIDTH - 104.0), Scale(0.0, highest, bottom, 16.0)
    body = [
        axes(
            x,
            y,
            [0.0, 0.25, 0.5, 0.75, 1.0],
            [0.0, 0.25, 0.5, 0.75, 1.0],
            lambda tick: f"{tick:.0%}",
            lambda tick: f"{tick:.2f}",
        ),
        words(x.end, bottom + 38, "training done", class_="axis", text_anchor="end"),
    ]
    body += [
        polyline(
            [(x(at), y(value)) for at, value in points], tooltip(told), class_=f"curve {kind}", stroke_dasharray=dash
        )
        for _, told, kind, dash, points in lines
    ]
    body.append(end_labels(names, lines, x, y))
    return drawing(WIDTH, bottom + 48, f"Open rate per gate over training: {model}", *body, class_="plot panel")


def end_labels(names: list[str], lines: list[tuple[str, str, str, str | None, Curve]], x: Scale, y: Scale) -> str:
    """The name of each kind of line where its lines end, on average over seeds."""
    ends = [y(spread(item[-1][-1][1] for item in lines if item[0] == name)["mean"]) for name in names]
    kinds = {item[0]: item[2] for item in lines}
    return "".join(
        words(x.end + 10, height + 4, shorten(name, 14), class_=f"small label {kinds[name]}")
        for name, height in zip(names, push_apart(ends, 15.0, y.end, y.start), strict=True)
    )


def curve(log: Log, values: list[float | None]) -> Curve:
    """The values over training progress, averaged in bins so that a long log stays a small figure."""
    steps = [number(entry.get("step")) for entry in log]
    last = max((step for step in steps if step is not None), default=0.0) or 1.0
    bins: dict[int, Curve] = {}
    for entry, step, value in zip(log, steps, values, strict=True):
        progress = number(entry.get("progress"))
        if progress is None:
            progress = None if step is None else step / last
        if progress is None or value is None:
            continue
        at = min(max(progress, 0.0), 1.0)
        bins.setdefault(int(at * (BINS - 1)), []).append((at, value))
    return [
        (sum(at for at, _ in seen) / len(seen), sum(value for _, value in seen) / len(seen))
        for _, seen in sorted(bins.items())
    ]
