"""The README and the docs: their links lead somewhere, and the README stays short."""

from __future__ import annotations

import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

from tests.page_snippets import FENCE
from tests.places import ROOT

README, API = ROOT / "README.md", ROOT / "docs" / "api.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
OURS = re.compile(r"https://github\.com/dynamicgate/dynamicgate/(?:blob|tree)/main/")
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


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
        ours = OURS.match(link)
        if re.match(r"[a-z]+:", link) and not ours:
            continue
        path, _, anchor = link.removeprefix(ours[0] if ours else "").partition("#")
        target = ((ROOT if ours else page.parent) / path).resolve() if path else page
        if anchor.startswith("dynamicgate.") and target.name == "api.md":
            if anchor not in documented(target):  # mkdocstrings makes these
                broken.append(link)
        elif not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    return broken


def test_links_of_the_readme_also_work_where_it_is_shown_without_the_repository() -> None:
    links = LINK.findall(FENCE.sub("", README.read_text(encoding="utf-8")))
    assert [link for link in links if not link.startswith("https://")] == []


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) < 150


def test_the_comparison_that_could_refute_us_is_on_the_first_screen() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if "ours against ours without gates" in line)
    assert at < 40, "what gates add, and ours against the best control, come before everything else"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    assert broken_links(page) == []


def test_a_link_to_a_missing_heading_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    ours = "https://github.com/dynamicgate/dynamicgate/blob/main/"
    page.write_text(
        "# Here `it` is\n[a](#here-it-is) [b](#gone) [c](none.md) [d](https://example.org)\n"
        f"[e]({ours}README.md) [f]({ours}README.md#nowhere) [g]({ours}gone.md)\n",
        "utf-8",
    )
    assert broken_links(page) == ["#gone", "none.md", f"{ours}README.md#nowhere", f"{ours}gone.md"]


def test_every_name_on_the_api_page_exists_and_every_top_level_name_is_there() -> None:
    import dynamicgate

    found = [pkgutil.resolve_name(name) for name in documented(API)]
    table = API.read_text(encoding="utf-8").split("## Gates")[0]
    assert [name for name in dynamicgate.__all__ if f"[`{name}`](#" not in table] == []
    values = (getattr(dynamicgate, name) for name in dynamicgate.__all__ if name not in ("nn", "sparsity"))
    assert [value for value in values if not any(value is one for one in found)] == []


def test_every_page_of_the_docs_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert listed == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
