"""Pages made from results: whole ones, and sections between the markers of a page that is otherwise written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dynamicgate.files import write_text
from dynamicgate.lab.report.markdown_tables import filled, markdown
from dynamicgate.lab.report.number_format import ABSENT

__all__ = ["ABSENT", "Pages", "markdown", "rendered", "write_pages"]

Pages = Mapping[str, str | Mapping[str, str]]
"""From a path in the checkout to the whole text of the page, or to {marker: text of that section}."""


def rendered(root: Path, pages: Pages) -> dict[Path, str]:
    """The files of these pages with their full texts; writes nothing."""
    texts = {}
    for name, content in pages.items():
        path = root / name
        if isinstance(content, str):
            texts[path] = content
            continue
        text = path.read_text(encoding="utf-8")
        for marker, section in content.items():
            text = filled(text, marker, section)
        texts[path] = text
    return texts


def write_pages(root: Path, pages: Pages) -> None:
    """Write these pages, and say which."""
    for path, text in rendered(root, pages).items():
        write_text(path, text)
        print(f"wrote {path.relative_to(root)}")
