"""Lines over training progress, read from logs: averaged in bins, drawn in strips below each other, and labelled."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dynamicgate.lab.report.number_format import shorten_middle
from dynamicgate.lab.report.reading import Log
from dynamicgate.lab.report.run_metrics import number
from dynamicgate.lab.report.summary import spread
from dynamicgate.lab.report.svg import (
    Scale,
    axes,
    decimals,
    drawing,
    polyline,
    push_apart,
    round_ticks,
    tooltip,
    words,
)

Curve = list[tuple[float, float]]

WIDTH = 480.0
MAX_NAME = 18
LETTER_WIDTH = 8.0  # pixels: few bold letters at 12.5 pixels are wider, measured on DejaVu Sans, a wide typeface
BINS = 100
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
TITLE_HEIGHT = 30.0  # between two strips: the title of the lower one
LABEL_HEIGHT = 15.0


class Line(NamedTuple):
    """One curve: the name at its end, the text of its tooltip, its CSS classes, its points and its stroke."""

    name: str
    hover_text: str
    css: str
    points: Curve
    dash: str | None = None
    style: str | None = None


class Strip(NamedTuple):
    """Lines that share a vertical axis: for fractions from 0 to at least 1, otherwise the range of their values."""

    lines: list[Line]
    title: str = ""
    height: float = 214.0
    is_fraction: bool = True


def draw_line_plot(label: str, strips: Sequence[Strip], steps: int | None = None) -> str:
    """The strips below each other over training progress; empty where no line has two points."""
    drawn = [strip._replace(lines=[item for item in strip.lines if len(item.points) > 1]) for strip in strips]
    drawn = [strip for strip in drawn if strip.lines]
    if not drawn:
        return ""
    longest = max(len(shorten_middle(item.name, MAX_NAME)) for strip in drawn for item in strip.lines)
    x = Scale(0.0, 1.0, 46.0, WIDTH - max(104.0, 14.0 + LETTER_WIDTH * longest))
    body, top = [], 16.0 - TITLE_HEIGHT
    for index, strip in enumerate(drawn):
        top += TITLE_HEIGHT if index or not strip.title else TITLE_HEIGHT + 12.0
        names = list(dict.fromkeys(item.name for item in strip.lines))
        bottom = top + max(strip.height, LABEL_HEIGHT * len(names))
        body.append(draw_strip(strip, names, x, top, bottom, is_last=index == len(drawn) - 1))
        top = bottom
    axis = "training progress" if steps is None else f"training progress, of {steps:,} steps"
    body.append(words(x.end, top + 38, axis, class_="axis", text_anchor="end"))
    return drawing(WIDTH, top + 48, label, *body, class_="plot panel")


def draw_strip(strip: Strip, names: list[str], x: Scale, top: float, bottom: float, *, is_last: bool) -> str:
    """One strip: its title, its axes, its lines and their names."""
    y, y_ticks, y_text = strip_scale(strip, top, bottom)
    drawn = [
        words(x.start, top - 9, strip.title, class_="axis") if strip.title else "",
        axes(x, y, QUARTERS if is_last else (), y_ticks, lambda tick: f"{tick:.0%}", y_text),
    ]
    drawn += [
        polyline(
            [(x(at), y(value)) for at, value in item.points],
            tooltip(item.hover_text),
            class_=f"curve {item.css}",
            stroke_dasharray=item.dash,
            style=item.style,
        )
        for item in strip.lines
    ]
    ends = [y(spread(item.points[-1][1] for item in strip.lines if item.name == name)["mean"]) for name in names]
    css = {item.name: item.css for item in strip.lines}
    drawn += [
        words(x.end + 10, height + 4, shorten_middle(name, MAX_NAME), class_=f"small label {css[name]}")
        for name, height in zip(names, push_apart(ends, LABEL_HEIGHT, y.end, y.start), strict=True)
    ]
    return "".join(drawn)


def strip_scale(strip: Strip, top: float, bottom: float) -> tuple[Scale, Sequence[float], Callable[[float], str]]:
    """The vertical scale of a strip, its ticks and how they are written."""
    values = [value for item in strip.lines for _, value in item.points]
    if strip.is_fraction:
        return Scale(0.0, max(1.0, *values), bottom, top), QUARTERS, lambda tick: f"{tick:.2f}"
    margin = max(0.06 * (max(values) - min(values)), 1e-6 * max(1.0, *map(abs, values)))
    y = Scale(min(values) - margin, max(values) + margin, bottom, top)
    ticks = round_ticks(y.low, y.high, 3)
    digits = decimals(ticks)
    return y, ticks, lambda tick: f"{tick:.{digits}f}".replace("-", "−")


def binned_curve(log: Log, values: Sequence[float | None]) -> Curve:
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
        (sum(at for at, _ in points) / len(points), sum(value for _, value in points) / len(points))
        for _, points in sorted(bins.items())
    ]


def last_step(logs: Sequence[Log]) -> int | None:
    """The number of steps of the longest log."""
    steps = [step for log in logs for entry in log if (step := number(entry.get("step"))) is not None]
    return round(max(steps)) if steps else None
