"""House rules that a reader would otherwise have to believe."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from tests.places import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))


COMPARISONS = runpy.run_path(str(ROOT / "experiments" / "comparisons.py"))
PAGES = runpy.run_path(str(ROOT / "benchmarks" / "pages.py"))
RESULTS = sorted((ROOT / "experiments" / "results").rglob("*.json"))


@pytest.mark.parametrize("name", COMPARISONS["COMPARISONS"])
def test_the_tables_of_the_pages_are_made_from_the_committed_results(name: str) -> None:
    page = (ROOT / COMPARISONS["COMPARISONS"][name].page).read_text(encoding="utf-8")
    results = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert COMPARISONS["filled"](page, name, results) == page
    assert COMPARISONS["table"](results) in page


@pytest.mark.parametrize("name", PAGES["TABLES"])
def test_the_tables_of_the_benchmarks_are_made_from_the_committed_results(name: str) -> None:
    table = PAGES["TABLES"][name]
    page = (ROOT / table.page).read_text(encoding="utf-8")
    results = json.loads((ROOT / table.results).read_text(encoding="utf-8"))
    assert PAGES["filled"](page, name, table.make(results)) == page


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_committed_results_say_where_they_come_from(path: Path) -> None:
    meta = json.loads(path.read_text(encoding="utf-8"))["meta"]
    assert meta["commit"]
    assert not meta["commit"].endswith("-dirty")
    assert meta["versions"]["torch"]
    assert meta["machine"]["threads"] >= 1
    assert meta["command"].startswith("python experiments/")


def test_no_source_file_is_a_room_for_everything() -> None:
    assert {path.name: lines for path in SOURCES if (lines := path.read_text("utf-8").count("\n")) > 320} == {}


def test_everything_public_is_exported_and_documented() -> None:
    import dynamicgate

    for name in dynamicgate.__all__:
        assert getattr(dynamicgate, name) is not None
        if name != "__version__":
            assert getattr(dynamicgate, name).__doc__, name
