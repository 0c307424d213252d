"""The README and the docs: their examples run, their links lead somewhere, and the README stays short."""

from __future__ import annotations

import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.places import ROOT

README, API = ROOT / "README.md", ROOT / "docs" / "api.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
# pages whose Python blocks run one after another
COMPLETE = ("index", "quickstart", "gates", "budget", "stages", "measurement", "hugging-face", "continual", "export")

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


def python_blocks(page: Path) -> list[str]:
    return [code for language, code in FENCE.findall(page.read_text(encoding="utf-8")) if language == "python"]


def run(code: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], cwd=folder, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    found: Counter[str] = Counter()
    names = set()
    for heading in HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        text = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip())
        names.add(f"{name}_{found[name]}" if found[name] else name)
        found[name] += 1
    return names


def documented(page: Path) -> list[str]:
    """The names that mkdocstrings describes on a page."""
    return re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE)


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if anchor.startswith("dynamicgate.") and target.name == "api.md":
            if anchor not in documented(target):  # mkdocstrings makes these
                broken.append(link)
        elif not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


@pytest.mark.slow
def test_the_first_example_of_the_readme_runs_as_it_is(tmp_path: Path) -> None:
    printed = run(python_blocks(README)[0], tmp_path)
    assert "executed MACs" in printed
    assert "as fast as dense" in printed
    assert list(tmp_path.iterdir()) == []


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPLETE)
def test_the_examples_of_a_page_run_one_after_another(name: str, tmp_path: Path) -> None:
    run("\n".join(python_blocks(ROOT / "docs" / f"{name}.md")), tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_to_a_missing_heading_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Here `it` is\n[a](#here-it-is) [b](#gone) [c](none.md) [d](https://example.org)\n", "utf-8")
    assert broken_links(page) == ["#gone", "none.md"]


def test_every_name_on_the_api_page_exists_and_every_top_level_name_is_there() -> None:
    import dynamicgate

    found = [pkgutil.resolve_name(name) for name in documented(API)]
    table = API.read_text(encoding="utf-8").split("## Gates")[0]
    assert [name for name in dynamicgate.__all__ if f"[`{name}`](#" not in table] == []
    values = (getattr(dynamicgate, name) for name in dynamicgate.__all__ if name not in ("nn", "sparsity"))
    assert [value for value in values if not any(value is one for one in found)] == []


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {page.name for page in (ROOT / "docs").glob("*.md")}
