"""The summary table for a terminal: columns of fixed width, plain text."""

import unicodedata

from dynamicgate.lab.report.reading import Results, check_results
from dynamicgate.lab.report.tables import summary_table


def render_table(results: Results) -> str:
    """The page's summary table as lines of equal width, text aligned left and numbers aligned right."""
    table = summary_table(check_results(results))
    lines = [table.columns, *([printable(cell.text) for cell in row] for row in table.rows)]
    widths = [max(screen_width(line[column]) for line in lines) for column in range(len(table.columns))]
    laid_out = [
        "  ".join(
            pad(text, width, left=column < table.names)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([laid_out[0], "  ".join("-" * width for width in widths), *laid_out[1:]])


def pad(text: str, width: int, left: bool) -> str:
    """The text padded with blanks to this width on screen."""
    blanks = " " * (width - screen_width(text))
    return text + blanks if left else blanks + text


def printable(text: str) -> str:
    """The text on one line and without control characters, which could move the cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)


def screen_width(text: str) -> int:
    """Columns on screen: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )
