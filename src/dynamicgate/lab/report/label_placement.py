"""Names beside the points of a plot, placed so that they cover neither each other nor the points."""

from collections.abc import Collection, Sequence

Anchor = tuple[float, float, str]
Box = tuple[float, float, float, float]  # left, top, right, bottom

LETTER_WIDTH = 8.6  # pixels: few bold letters at 14 pixels are wider, measured on DejaVu Sans, a wide typeface
LINE_HEIGHT = 16.0
DISTANCE = 14.0
MARKER_RADIUS = 8.0
STEPS = (0, 1, -1, 2, -2, 3, -3, 4, -4, 6, -6, 8, -8, 10, -10)  # half lines up or down, nearest first


def place_labels(
    points: Sequence[tuple[float, float]], names: Sequence[str], within: Box, optional: Collection[int] = ()
) -> dict[int, Anchor]:
    """For each point the position of its name and its anchor (``start`` or ``end``): right of the point where there is
    room, else left, else a little higher or lower. Where nothing is free the name stays right of its point. Names are
    placed from top to bottom, so that crowded names keep the order of their points. Optional ones come last, and are
    left out where there is no room beside their point."""
    taken: list[Box] = [(x - MARKER_RADIUS, y - MARKER_RADIUS, x + MARKER_RADIUS, y + MARKER_RADIUS) for x, y in points]
    placed: dict[int, Anchor] = {}
    for index in sorted(range(len(points)), key=lambda index: (index in optional, points[index][1])):
        x, y = points[index]
        width = LETTER_WIDTH * len(names[index])
        choices = [
            (x + side * DISTANCE, y + step * LINE_HEIGHT / 2, "start" if side > 0 else "end")
            for step in ((0,) if index in optional else STEPS)
            for side in (1, -1)
        ]
        free = [choice for choice in choices if fits(label_box(choice, width), taken, within)]
        if not free and index in optional:
            continue
        chosen = free[0] if free else choices[0]
        taken.append(label_box(chosen, width))
        placed[index] = chosen
    return dict(sorted(placed.items()))


def label_box(anchor: Anchor, width: float) -> Box:
    """The rectangle that a name covers when it is anchored there."""
    x, y, kind = anchor
    left = x if kind == "start" else x - width
    return left, y - LINE_HEIGHT / 2, left + width, y + LINE_HEIGHT / 2


def fits(box: Box, taken: list[Box], within: Box) -> bool:
    """Whether the box lies within the plot and overlaps nothing that was placed before."""
    left, top, right, bottom = box
    inside = left >= within[0] and top >= within[1] and right <= within[2] and bottom <= within[3]
    return inside and not any(
        left < other[2] and other[0] < right and top < other[3] and other[1] < bottom for other in taken
    )
