"""One colour and one marker shape per model, the same in every figure; the colours themselves are in page.css."""

from collections.abc import Iterable
from itertools import chain, count

from dynamicgate.lab.report.compared_models import MODEL_TABLE
from dynamicgate.lab.report.svg import tag

COLOURS = 16
SHAPES = 5


def model_styles(models: Iterable[str]) -> dict[str, int]:
    """A style number for each model: those in the table keep theirs from report to report, others take what is left."""
    names = list(dict.fromkeys(models))
    known = {name: MODEL_TABLE[name].colour for name in names if name in MODEL_TABLE}
    free = chain((style for style in (*range(5, COLOURS), *range(5)) if style not in known.values()), count(COLOURS))
    return {name: known[name] if name in known else next(free) for name in names}


def colour_class(style: int) -> str:
    """The CSS class that sets the colour of a style."""
    return f"c{style % COLOURS}"


def shape_of(style: int) -> int:
    """The number of the shape of a style."""
    return (style + style // COLOURS) % SHAPES


def marker(style: int, x: float, y: float, radius: float, *children: str, class_: str = "") -> str:
    """The marker of a style: circle, square, diamond or triangle, of about equal area. A colour that is used again
    comes with another shape."""
    classes = f"mark {colour_class(style)} {class_}".strip()
    shape = shape_of(style)
    if shape == 0:
        return tag("circle", *children, cx=x, cy=y, r=radius, class_=classes)
    corners = {
        1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2: [(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)],
        3: [(0.0, -1.2), (1.2, 0.95), (-1.2, 0.95)],
        4: [(0.0, 1.2), (1.2, -0.95), (-1.2, -0.95)],
    }[shape]
    points = " ".join(f"{x + radius * dx:.1f},{y + radius * dy:.1f}" for dx, dy in corners)
    return tag("polygon", *children, points=points, class_=classes)


def swatch(style: int, control: bool = False) -> str:
    """A marker small enough to stand before a name in a table; that of a control is hollow."""
    drawn = marker(style, 7, 7, 5, class_="control" if control else "")
    return tag("svg", drawn, viewBox="0 0 14 14", class_="swatch", aria_hidden="true")
