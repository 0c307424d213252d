"""Pages: whole ones are replaced, marked sections are filled, and rendering alone writes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamicgate.lab.runner.docs_pages import markdown, rendered, write_pages

PAGE = "before\n<!-- results:one -->\nold\n<!-- /results:one -->\nafter\n"


def test_a_page_is_written_whole_or_in_its_marked_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "marked.md").write_text(PAGE)
    pages = {"whole.md": "all of it\n", "marked.md": {"one": markdown(["a", "b"], [["1", "2"]], numbers=True)}}
    texts = rendered(tmp_path, pages)
    assert not (tmp_path / "whole.md").exists()
    assert (tmp_path / "marked.md").read_text() == PAGE
    write_pages(tmp_path, pages)
    assert {path: path.read_text() for path in texts} == texts
    assert (
        "<!-- results:one -->\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n<!-- /results:one -->"
        in texts[tmp_path / "marked.md"]
    )
    assert capsys.readouterr().out == "wrote whole.md\nwrote marked.md\n"


def test_a_marker_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "marked.md").write_text(PAGE)
    with pytest.raises(ValueError, match="expected the markers of 'two' once in the page, found them 0 times"):
        rendered(tmp_path, {"marked.md": {"two": "x"}})
