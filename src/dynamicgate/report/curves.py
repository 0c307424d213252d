"""Lines over training, from the logs: how they are thinned out, drawn and named."""

from typing import Any, NamedTuple

from .summary import number, spread
from .svg import Scale, axes, drawing, polyline, push_apart, tooltip, words
from .wording import shorten

Log = list[dict[str, Any]]
Curve = list[tuple[float, float]]

WIDTH = 480.0
LONGEST_NAME = 16
LETTER = 8.0  # a bold letter of 12.5 pixels is seldom wider, measured on DejaVu Sans, a wide face
BINS = 100
QUARTERS = [0.0, 0.25, 0.5, 0.75, 1.0]


class Line(NamedTuple):
    """One curve: the name that stands at its end, what it tells the pointer, and its look (CSS classes and style)."""

    name: str
    told: str
    look: str
    points: Curve
    dash: str | None = None
    style: str | None = None


def panel(label: str, lines: list[Line]) -> str:
    """The lines over training progress, shares from 0 to 1 upwards; nothing where no line has two points."""
    lines = [item for item in lines if len(item.points) > 1]
    if not lines:
        return ""
    names = list(dict.fromkeys(item.name for item in lines))
    bottom = max(230.0, 34.0 + 16.0 * len(names))
    highest = max(1.0, *(value for item in lines for _, value in item.points))
    margin = max(104.0, 14.0 + LETTER * max(len(shorten(name, LONGEST_NAME)) for name in names))
    x, y = Scale(0.0, 1.0, 38.0, WIDTH - margin), Scale(0.0, highest, bottom, 16.0)
    body = [
        axes(x, y, QUARTERS, QUARTERS, lambda tick: f"{tick:.0%}", lambda tick: f"{tick:.2f}"),
        words(x.end, bottom + 38, "training done", class_="axis", text_anchor="end"),
    ]
    body += [
        polyline(
            [(x(at), y(value)) for at, value in item.points],
            tooltip(item.told),
            class_=f"curve {item.look}",
            stroke_dasharray=item.dash,
            style=item.style,
        )
        for item in lines
    ]
    body.append(end_labels(names, lines, x, y))
    return drawing(WIDTH, bottom + 48, label, *body, class_="plot panel")


def end_labels(names: list[str], lines: list[Line], x: Scale, y: Scale) -> str:
    """The name of each kind of line where its lines end, on average over seeds."""
    ends = [y(spread(item.points[-1][1] for item in lines if item.name == name)["mean"]) for name in names]
    looks = {item.name: item.look for item in lines}
    return "".join(
        words(x.end + 10, height + 4, shorten(name, LONGEST_NAME), class_=f"small label {looks[name]}")
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
