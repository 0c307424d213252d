"""The SVG elements that figures are drawn with: tags, text, lines, axes, scales and ticks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

IN_PICTURES = "text{font:13px sans-serif;fill:#444}.grid{stroke:#e4e4e4}.base{stroke:#999}"  # without a style sheet


def tag(name: str, *children: str, **attributes: object) -> str:
    """An element: ``class_`` is written ``class``, ``aria_label`` is written ``aria-label``; None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(attribute(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>"


def attribute(value: object) -> str:
    """An attribute's text; a tenth of a pixel is fine enough for a coordinate."""
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def words(x: float, y: float, content: str, **attributes: object) -> str:
    """A line of text."""
    return tag("text", escape(content), x=x, y=y, **attributes)


def tooltip(content: str) -> str:
    """What the browser shows while the pointer rests on the parent element."""
    return tag("title", escape(content))


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def polyline(points: Sequence[tuple[float, float]], *children: str, **attributes: object) -> str:
    """A line through the points."""
    return tag("polyline", *children, points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **attributes)


def drawing(
    width: float, height: float, label: str, *children: str, class_: str = "plot", marks_per_row: int | None = None
) -> str:
    """The whole figure, with a label for screen readers; the arrow-down key moves by `marks_per_row` marks."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        class_=class_,
        role="img",
        aria_label=label,
        style=f"--natural-width:{width:.0f}px",
        data_row=marks_per_row,
    )


def picture(width: float, height: float, label: str, *children: str, style: str = "") -> str:
    """The figure as a file of its own, on white: a page in dark colours may show it. style: of its own elements."""
    own = tag("rect", width=width, height=height, fill="#ffffff"), tag("style", IN_PICTURES + style)
    size = f"0 0 {width:.0f} {height:.0f}"
    drawn = tag("svg", *own, *children, xmlns="http://www.w3.org/2000/svg", viewBox=size, role="img", aria_label=label)
    return f"{drawn}\n"


WIDE, NARROW = 760.0, 400.0  # of a figure on a desk and on a phone


def for_every_screen(draw: Callable[[float], str]) -> str:
    """The figure twice, for wide and for narrow screens; the style sheet shows one. `draw` gets the width."""
    wide, narrow = draw(WIDE), draw(NARROW)
    return wide.replace('class="plot', 'class="plot wide', 1) + narrow.replace('class="plot', 'class="plot narrow', 1)


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` laid out on pixels from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The position of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@dataclass(frozen=True)
class LogScale(Scale):
    """Positive values laid out by their logarithms; what is below ``low`` is at the start."""

    def __call__(self, value: float) -> float:
        """The position of a value."""
        part = math.log(max(value, self.low) / self.low) / math.log(self.high / self.low)
        return self.start + part * (self.end - self.start)


def log_ticks(low: float, high: float) -> list[float]:
    """The logarithms of 1, 2 and 5 times powers of ten between the two."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [power + math.log10(factor) for power in powers for factor in (1, 2, 5)]
    return [tick for tick in ticks if low - 1e-9 <= tick <= high + 1e-9]


def round_ticks(low: float, high: float, about: int) -> list[float]:
    """About so many round numbers between low and high."""
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.7)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def decimals(ticks: Sequence[float]) -> int:
    """How many decimals are needed to tell neighbouring ticks apart."""
    step = ticks[1] - ticks[0] if len(ticks) > 1 else 1.0
    return max(0, -math.floor(math.log10(step) + 1e-9))


def axes(
    x: Scale,
    y: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    x_text: Callable[[float], str],
    y_text: Callable[[float], str],
) -> str:
    """Grid lines with their numbers, and a baseline."""
    drawn = [line(x.start, y(tick), x.end, y(tick), class_="grid") for tick in y_ticks]
    drawn += [words(x.start - 8, y(tick) + 4, y_text(tick), class_="tick", text_anchor="end") for tick in y_ticks]
    drawn += [line(x(tick), y.start, x(tick), y.start + 5, class_="base") for tick in x_ticks]
    drawn += [words(x(tick), y.start + 19, x_text(tick), class_="tick", text_anchor="middle") for tick in x_ticks]
    drawn.append(line(x.start, y.start, x.end, y.start, class_="base"))
    return "".join(drawn)


def axes_of_picture(
    x: Scale, y: Scale, x_ticks: Sequence[float], x_text: Callable[[float], str], below: str, beside: str
) -> str:
    """Axes with round numbers beside them, and what they show: `below` at the right end, `beside` at the top."""
    y_ticks = round_ticks(y.low, y.high, 6)
    digits = decimals(y_ticks)
    drawn = axes(x, y, x_ticks, y_ticks, x_text, lambda tick: f"{tick:.{digits}f}")
    return drawn + words(x.end, y.start + 40, below, text_anchor="end") + words(8, 16, beside)


def push_apart(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Positions moved as little as a simple sweep can, so that neighbours are ``gap`` apart and inside low to high."""
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    moved = list(positions)
    floor = low
    for index in order:
        moved[index] = max(moved[index], floor)
        floor = moved[index] + gap
    ceiling = high
    for index in reversed(order):
        moved[index] = min(moved[index], ceiling)
        ceiling = moved[index] - gap
    return moved
