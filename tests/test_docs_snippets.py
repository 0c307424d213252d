"""Every Python block of every page runs, page by page, and every command of every page exists with its options."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from dynamicgate.lab.cli import COMMANDS, parse
from tests.page_snippets import PAGES, ROOT, blocks, run_code, run_page

WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]
# by page, the extra that it is about
NEEDED = {"hugging-face": "transformers", "cells": "scanpy", "omics": "scanpy", "integrations": "lightning"}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).with_suffix("").as_posix()


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_the_examples_of_a_page_run_one_after_another(page: Path, tmp_path: Path) -> None:
    if page.stem in NEEDED:
        pytest.importorskip(NEEDED[page.stem])
    folder = tmp_path / "folder"
    folder.mkdir()
    printed = run_page(page, folder)
    if page.stem == "README":
        assert "executed MACs" in printed
        assert "as fast as compiled dense" in printed
        assert list(folder.iterdir()) == []


def test_a_snippet_that_fails_or_warns_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert run_code("print('fine')", folder) == "fine\n"
    for code in ("1 / 0", "import warnings; warnings.warn('old')", "raise SystemExit(3)"):
        with pytest.raises(AssertionError, match=r"Error|Warning|status 3"):
            run_code(code, folder)


def commands(page: Path) -> list[list[str]]:
    """The `dynamicgate` commands in the shell blocks of a page; loops over files stand for one file."""
    found = []
    for code in blocks(page, "bash"):
        for line in code.replace("\\\n", " ").splitlines():
            words = shlex.split(line.partition(";")[0] if line.startswith("dynamicgate") else line, comments=True)
            if "dynamicgate" in words:
                start = words.index("dynamicgate")
                rest = words[start + 1 :]
                found.append(rest[: rest.index("done")] if "done" in rest else rest)
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=name_of)
def test_the_commands_of_a_page_exist_with_their_options(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page):
        words = [word.rstrip(";") for word in words if word != ";"]
        if not words or words[0] not in COMMANDS or words[-1] == "--help":
            continue
        try:
            parse(words)
        except SystemExit:
            pytest.fail(f"dynamicgate {shlex.join(words)}: {capsys.readouterr()}")
