"""Tables in Markdown, and filling them in between the markers of a page."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: bool = False) -> str:
    """A table; with `numbers` all columns but the first are aligned right."""
    rule = ["---", *["---:" if numbers else "---"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(row)} |" for row in [columns, rule, *rows])


def filled(page: str, name: str, text: str) -> str:
    """The page with `text` between its markers `<!-- results:NAME -->` and `<!-- /results:NAME -->`."""
    pattern = rf"(<!-- results:{name} -->\n).*?(\n<!-- /results:{name} -->)"
    page, count = re.subn(pattern, lambda found: found[1] + text + found[2], page, flags=re.DOTALL)
    if count != 1:
        raise ValueError(f"expected the markers of {name!r} once in the page, found them {count} times")
    return page
