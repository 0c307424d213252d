"""House rules that a reader would otherwise have to believe."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_the_tables_of_the_readme_are_made_from_the_committed_results(name: str) -> None:
    foundation = runpy.run_path(str(ROOT / "experiments" / "foundation.py"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    results = json.loads((ROOT / "experiments" / "results" / f"foundation-{name}.json").read_text(encoding="utf-8"))
    assert foundation["filled"](readme, name, results) == readme
    assert foundation["table"](results) in readme


@pytest.mark.parametrize("name", ["digits", "mnist"])
def test_committed_results_say_where_they_come_from(name: str) -> None:
    meta = json.loads((ROOT / "experiments" / "results" / f"foundation-{name}.json").read_text(encoding="utf-8"))[
        "meta"
    ]
    assert meta["commit"]
    assert not meta["commit"].endswith("-dirty")
    assert meta["versions"]["torch"]
    assert meta["machine"]["threads"] >= 1
    assert meta["seeds"]
    assert meta["command"].startswith("dynamicgate compare")


def test_no_source_file_is_a_room_for_everything() -> None:
    assert {path.name: lines for path in SOURCES if (lines := path.read_text("utf-8").count("\n")) > 320} == {}


def test_everything_public_is_exported_and_documented() -> None:
    import dynamicgate

    for name in dynamicgate.__all__:
        assert getattr(dynamicgate, name) is not None
        if name != "__version__":
            assert getattr(dynamicgate, name).__doc__, name
