"""Which blocks open for which class, as a heat map."""

from .palette import colour_class
from .read import Run
from .summary import number
from .svg import drawing, tag, tooltip, words
from .wording import counted

MOST_BLOCKS = 256
MOST_CLASSES = 100
LEFT = 46.0
TOP = 26.0
CELL_HEIGHT = 20.0


def class_figure(gate: Run, style: int) -> str:
    """Rows are classes, columns are blocks; the fuller the colour, the more often the block is open."""
    rates = open_rates(gate)
    if not rates:
        return ""
    rows, columns = len(rates), max(len(row) for row in rates)
    cell = min(34.0, max(5.0, 640.0 / columns))
    gap = 1.0 if cell < 12 else 2.0
    every = next(step for step in (1, 2, 5, 10, 20) if step * cell >= 28 or step == 20)
    body = [
        words(LEFT + (column + 0.5) * cell, TOP - 9, str(column), class_="tick", text_anchor="middle")
        for column in range(0, columns, every)
    ]
    body += [
        words(LEFT - 10, TOP + (row + 0.5) * CELL_HEIGHT + 4, str(row), class_="tick", text_anchor="end")
        for row in range(rows)
    ]
    body += [
        tag(
            "rect",
            tooltip(f"class {row}, block {column}: open {rate:.0%}"),
            x=LEFT + column * cell,
            y=TOP + row * CELL_HEIGHT,
            width=cell - gap,
            height=CELL_HEIGHT - gap,
            rx=1 if gap == 1.0 else 2,
            fill_opacity=f"{min(max(rate, 0.0), 1.0):.3f}",
            class_="heat",
        )
        for row, opened in enumerate(rates)
        for column, rate in enumerate(opened)
        if rate is not None
    ]
    width, height = max(LEFT + columns * cell + 4, 300.0), TOP + rows * CELL_HEIGHT + 4
    label = f"Open rate per class (rows) and block (columns): {gate.get('name', 'gate')}"
    return drawing(width, height, label, *body, class_=f"plot natural {colour_class(style)}")


def open_rates(gate: Run) -> list[list[float | None]]:
    """Open rate per class and block, cut to what a page can show."""
    table = gate.get("open_by_class")
    if not isinstance(table, list):
        return []
    rates = [
        [number(rate) for rate in row[:MOST_BLOCKS]] if isinstance(row, list) else [] for row in table[:MOST_CLASSES]
    ]
    return rates if any(rates) else []


def class_caption(gate: Run) -> str:
    """The gate's name, its size, and what was cut off."""
    rates = gate.get("open_by_class")
    classes = len(rates) if isinstance(rates, list) else 0
    blocks = max((len(row) for row in rates if isinstance(row, list)), default=0) if isinstance(rates, list) else 0
    block = number(gate.get("block"))
    size = f" of {counted(round(block), 'unit')}" if block is not None else ""
    cut = f"; the first {MOST_BLOCKS} blocks are shown" if blocks > MOST_BLOCKS else ""
    cut += f"; the first {MOST_CLASSES} classes are shown" if classes > MOST_CLASSES else ""
    return f"{gate.get('name', 'gate')}: {classes} classes × {blocks} blocks{size}{cut}"
