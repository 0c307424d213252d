"""Lines over training, from the logs: how they are thinned out, drawn in strips under each other, and named."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dynamicgate.lab.report.number_format import shorten
from dynamicgate.lab.report.summary import number, spread
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

Log = list[dict[str, Any]]
Curve = list[tuple[float, float]]

WIDTH = 480.0
LONGEST_NAME = 16
LETTER = 8.0  # a bold letter of 12.5 pixels is seldom wider, measured on DejaVu Sans, a wide face
BINS = 100
QUARTERS = (0.0, 0.25, 0.5, 0.75, 1.0)
TITLE = 30.0  # between two strips: the title of the lower one
NAME = 15.0


class Line(NamedTuple):
    """One curve: the name that stands at its end, what it tells the pointer, and its look (CSS classes and style)."""

    name: str
    told: str
    look: str
    points: Curve
    dash: str | None = None
    style: str | None = None


class Strip(NamedTuple):
    """Lines that share a vertical scale: from 0 to at least 1 with ticks at the quarters, or whatever they cover."""

    lines: list[Line]
    title: str = ""
    height: float = 214.0
    is_share: bool = True


def panel(label: str, strips: Sequence[Strip], steps: int | None = None) -> str:
    """The strips under each other over training progress; nothing where no line has two points."""
    drawn = [strip._replace(lines=[item for item in strip.lines if len(item.points) > 1]) for strip in strips]
    drawn = [strip for strip in drawn if strip.lines]
    if not drawn:
        return ""
    longest = max(len(shorten(item.name, LONGEST_NAME)) for strip in drawn for item in strip.lines)
    x = Scale(0.0, 1.0, 46.0, WIDTH - max(104.0, 14.0 + LETTER * longest))
    body, top = [], 16.0 - TITLE
    for index, strip in enumerate(drawn):
        top += TITLE if index or not strip.title else TITLE + 12.0
        names = list(dict.fromkeys(item.name for item in strip.lines))
        bottom = top + max(strip.height, NAME * len(names))
        body.append(draw_strip(strip, names, x, top, bottom, is_last=index == len(drawn) - 1))
        top = bottom
    told = "training done" if steps is None else f"training done, of {steps:,} steps"
    body.append(words(x.end, top + 38, told, class_="axis", text_anchor="end"))
    return drawing(WIDTH, top + 48, label, *body, class_="plot panel")


def draw_strip(strip: Strip, names: list[str], x: Scale, top: float, bottom: float, *, is_last: bool) -> str:
    """One strip: its title, its axis, its lines and their names."""
    y, y_ticks, y_text = strip_scale(strip, top, bottom)
    drawn = [
        words(x.start, top - 9, strip.title, class_="axis") if strip.title else "",
        axes(x, y, QUARTERS if is_last else (), y_ticks, lambda tick: f"{tick:.0%}", y_text),
    ]
    drawn += [
        polyline(
            [(x(at), y(value)) for at, value in item.points],
            tooltip(item.told),
            class_=f"curve {item.look}",
            stroke_dasharray=item.dash,
            style=item.style,
        )
        for item in strip.lines
    ]
    ends = [y(spread(item.points[-1][1] for item in strip.lines if item.name == name)["mean"]) for name in names]
    looks = {item.name: item.look for item in strip.lines}
    drawn += [
        words(x.end + 10, height + 4, shorten(name, LONGEST_NAME), class_=f"small label {looks[name]}")
        for name, height in zip(names, push_apart(ends, NAME, y.end, y.start), strict=True)
    ]
    return "".join(drawn)


def strip_scale(strip: Strip, top: float, bottom: float) -> tuple[Scale, Sequence[float], Callable[[float], str]]:
    """The vertical scale of a strip, its ticks and how they are written."""
    values = [value for item in strip.lines for _, value in item.points]
    if strip.is_share:
        return Scale(0.0, max(1.0, *values), bottom, top), QUARTERS, lambda tick: f"{tick:.2f}"
    margin = max(0.06 * (max(values) - min(values)), 1e-6 * max(1.0, *map(abs, values)))
    y = Scale(min(values) - margin, max(values) + margin, bottom, top)
    ticks = round_ticks(y.low, y.high, 3)
    digits = decimals(ticks)
    return y, ticks, lambda tick: f"{tick:.{digits}f}".replace("-", "−")


def curve(log: Log, values: Sequence[float | None]) -> Curve:
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


def last_step(logs: Sequence[Log]) -> int | None:
    """How many steps the longest of the logs counts."""
    steps = [step for log in logs for entry in log if (step := number(entry.get("step"))) is not None]
    return round(max(steps)) if steps else None
