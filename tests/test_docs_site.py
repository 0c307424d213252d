"""The site builds without a warning, and the pages of the gallery are those of its scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tools.gallery import PAGES, SCRIPTS, cells

from tests.page_snippets import ROOT, blocks

NAMES = sorted(path.stem for path in SCRIPTS.glob("*.py"))


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "gallery" / "tabular" / "index.html").exists()


def test_the_gallery_has_its_six_scripts() -> None:
    assert NAMES == ["cells", "deploy", "images", "own_loop", "tabular", "transformer"]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_of_the_gallery_is_that_of_its_script(name: str) -> None:
    script = cells((SCRIPTS / f"{name}.py").read_text(encoding="utf-8"))
    page = PAGES / f"{name}.md"
    code = [code.rstrip("\n") for code in blocks(page, "python")]
    assert code == [cell.content for cell in script if not cell.is_text], "run `python -m tools.gallery`"
    text = page.read_text(encoding="utf-8")
    assert all(part in text for cell in script if cell.is_text for part in cell.content.split("\n"))
    assert f"({name}-1.svg)" in text
    assert (PAGES / f"{name}-1.svg").exists()
