"""Which blocks of units open for which class, as a heat map."""

from collections.abc import Sequence

from dynamicgate.lab.report.model_markers import colour_class
from dynamicgate.lab.report.number_format import counted, shorten_middle
from dynamicgate.lab.report.reading import Run
from dynamicgate.lab.report.run_metrics import number
from dynamicgate.lab.report.svg import WIDE, drawing, tag, tooltip, words

MAX_BLOCKS = 256
MAX_CLASSES = 100
MAX_NAME = 20
LETTER_WIDTH = 8.4  # pixels: few letters at 13 pixels are wider, measured on DejaVu Sans, a wide typeface
HEADER_HEIGHT = 26.0
ROW_HEIGHT = 20.0
WIDE_COLUMN = 12.0  # pixels: enough for a gap of two, and for a number above
SHARED = 0.5
RARE = 0.02
Rates = list[list[float | None]]


def heatmap_figure(
    gate: Run, style: int, names: Sequence[str] = (), costs: Sequence[float | None] = (), width: float = WIDE
) -> str:
    """Rows are classes, columns are blocks; the stronger the colour, the more often the block is open.

    Blocks have no order of their own: they are sorted by the class that opens them most. `costs`, where they are known,
    are the relative MACs of each class, shown at the end of its row.
    """
    rates = open_rates(gate)
    if not rates:
        return ""
    order = block_order(rates)
    labels = [class_label(names, row) for row in range(len(rates))]
    left = 18.0 + LETTER_WIDTH * max(len(label) for label in labels)
    room, least = (560, 3) if width >= WIDE else (250, 1)
    column = float(min(34, max(least, room // len(order))))  # whole pixels: no seams between neighbours
    is_wide = column >= WIDE_COLUMN
    gap = 2.0 if is_wide else 0.0
    right = left + len(order) * column
    has_costs = any(cost is not None for cost in costs)
    top = HEADER_HEIGHT if has_costs or is_wide else 4.0
    body = [tag("rect", x=left, y=top, width=right - left - gap, height=len(rates) * ROW_HEIGHT - gap, class_="never")]
    if is_wide:
        every = 1 if column >= 22 else 2
        body += [
            words(
                left + (place + 0.5) * column - gap / 2, top - 9, str(order[place]), class_="tick", text_anchor="middle"
            )
            for place in range(0, len(order), every)
        ]
    for row, opened in enumerate(rates):
        middle = top + (row + 0.5) * ROW_HEIGHT + 4
        body.append(words(left - 10, middle, labels[row], class_="tick", text_anchor="end"))
        if row < len(costs) and costs[row] is not None:
            body.append(words(right + 10, middle, f"{costs[row]:.3f}", class_="tick"))
        body += [
            tag(
                "rect",
                tooltip(f"class {labels[row]}, block {block}: open for {rate:.0%}"),
                x=left + place * column,
                y=top + row * ROW_HEIGHT,
                width=column - gap,
                height=ROW_HEIGHT - 1.0,
                fill_opacity=f"{min(max(rate, 0.0), 1.0):.3g}",
                class_="heat",
            )
            for place, block in enumerate(order)
            if block < len(opened) and (rate := opened[block]) is not None
        ]
    if has_costs:
        body.append(words(right + 10, top - 9, "MACs", class_="tick"))
        right += 52.0
    label = f"Open rate per class (rows) and block (columns): {gate.get('name', 'gate')}"
    size = max(right + 4, 300.0), top + len(rates) * ROW_HEIGHT + 4
    natural = f"plot natural {colour_class(style)}"
    return drawing(*size, label, *body, class_=natural, marks_per_row=len(order))


def class_label(names: Sequence[str], row: int) -> str:
    """The name of a class, or its number where it has none; long names keep both ends, by which they differ."""
    return shorten_middle(names[row], MAX_NAME) if row < len(names) else str(row)


def block_order(rates: Rates) -> list[int]:
    """First the blocks that most classes open, the most open ones ahead; then the others, by the class that opens them
    most; last those that hardly ever open."""

    def key(block: int) -> tuple[float, float, int]:
        column = [(row[block] if block < len(row) else None) or 0.0 for row in rates]
        mean, most = sum(column) / len(column), max(column)
        if mean >= SHARED:
            return (-1.0, -mean, block)
        return (len(column) if most < RARE else column.index(most), -most, block)

    return sorted(range(max(len(row) for row in rates)), key=key)


def open_rates(gate: Run) -> Rates:
    """Open rate per class and block, cut to what a page can show."""
    table = gate.get("open_by_class")
    if not isinstance(table, list):
        return []
    rates = [
        [number(rate) for rate in row[:MAX_BLOCKS]] if isinstance(row, list) else [] for row in table[:MAX_CLASSES]
    ]
    return rates if any(rates) else []


def heatmap_caption(gate: Run) -> str:
    """The gate's name, its size, and what was cut off."""
    rates = gate.get("open_by_class")
    classes = len(rates) if isinstance(rates, list) else 0
    blocks = max((len(row) for row in rates if isinstance(row, list)), default=0) if isinstance(rates, list) else 0
    block = number(gate.get("block"))
    size = f" of {counted(round(block), 'unit')}" if block is not None and block > 1 else ""
    noun = "units" if block == 1 else "blocks"
    cut = f"; the first {MAX_BLOCKS} {noun} are shown" if blocks > MAX_BLOCKS else ""
    cut += f"; the first {MAX_CLASSES} classes are shown" if classes > MAX_CLASSES else ""
    return f"{gate.get('name', 'gate')}: {classes} classes × {blocks} {noun}{size}{cut}"
