"""Runs the Python blocks of a page one after the other, in a process that has imported torch already.

A page that needs torchrun, or a file of the reader's, gets both here: what the docs print runs as it is.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tests.places import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = "id,age,smoker,outcome\n" + "".join(
    f"{row},{20 + row * 7 % 60},{'yes' if row % 3 else 'no'},{'high' if row % 2 else 'low'}\n" for row in range(120)
)
FILES = {"data": {"table.csv": TABLE}}  # by page, what the reader is assumed to have
ONE_PROCESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}  # as torchrun sets them
SECONDS = 240


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in this language, in order."""
    return [code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def run_page(page: Path, folder: Path) -> str:
    """Run all Python blocks of a page in `folder` and return what they print; AssertionError if one fails."""
    for name, text in FILES.get(page.stem, {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return run_code("\n".join(blocks(page, "python")), folder)


def run_code(code: str, folder: Path) -> str:
    """Run code in a process of its own, with warnings as errors, and return what it prints."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "dynamicgate.training", "dynamicgate.inference", "tests.page_snippets"])
    printed = folder.parent / f"{folder.name}-printed.txt"
    process = context.Process(target=_execute, args=(code, str(folder), str(printed)))
    process.start()
    process.join(SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"still running after {SECONDS} seconds")
    text = printed.read_text(encoding="utf-8")
    assert process.exitcode == 0, text[-3000:]
    return text


def _execute(code: str, folder: str, printed: str) -> None:
    os.chdir(folder)
    os.environ.update(ONE_PROCESS)
    sys.argv = ["snippet"]
    with open(printed, "w", encoding="utf-8") as out, redirect_stdout(out), redirect_stderr(out):
        try:
            warnings.simplefilter("error")
            exec(compile(code, "<page>", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=out)
            out.flush()
            os._exit(1)
