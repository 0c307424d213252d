"""The pages of docs/gallery from the scripts in examples/gallery: their text, code, output and pictures.

    python -m tools.gallery            # run all scripts and write all pages
    python -m tools.gallery tabular    # one of them

A script has cells: `# %% [markdown]` with commented text, `# %%` with code. Figures that are open after a cell become
pictures below it.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
import warnings
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS, PAGES = ROOT / "examples" / "gallery", ROOT / "docs" / "gallery"
NOTE = "<!-- do not edit: made by `python -m tools.gallery` from examples/gallery/{name}.py -->"


class Cell(NamedTuple):
    """Text or code of a script."""

    is_text: bool
    content: str


def cells(script: str) -> list[Cell]:
    """The cells of a script, in order."""
    found = []
    for part in script.split("# %%")[1:]:
        is_text = part.startswith(" [markdown]")
        lines = part.partition("\n")[2].strip("\n").splitlines()
        if is_text:
            lines = [line.removeprefix("#").removeprefix(" ") for line in lines]
        found.append(Cell(is_text, "\n".join(lines)))
    return found


def run_script(name: str) -> list[str]:
    """Run a script cell by cell; the parts of its page. Pictures are written beside the page."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("svg")
    plt.rcParams.update({"svg.hashsalt": name, "savefig.bbox": "tight", "savefig.facecolor": "white"})
    parts, names, pictures = [], dict[str, Any](__name__="__main__"), 0
    for cell in cells((SCRIPTS / f"{name}.py").read_text(encoding="utf-8")):
        if cell.is_text:
            parts.append(cell.content)
            continue
        parts.append(f"```python\n{cell.content}\n```")
        with redirect_stdout(io.StringIO()) as printed:
            exec(compile(cell.content, f"{name}.py", "exec"), names)
        if printed.getvalue().strip():
            parts.append(f"```text\n{printed.getvalue().rstrip()}\n```")
        for number in plt.get_fignums():
            pictures += 1
            picture = PAGES / f"{name}-{pictures}.svg"
            plt.figure(number).savefig(picture, metadata={"Date": None})
            parts.append(f"![What {name}.py draws]({picture.name})")
        plt.close("all")
    return parts


def write_page(name: str) -> None:
    """Run one script in a folder of its own and write its page."""
    PAGES.mkdir(parents=True, exist_ok=True)
    started, here = time.monotonic(), Path.cwd()
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        os.chdir(folder)
        try:
            title, *rest = run_script(name)
        finally:
            os.chdir(here)
    source = f"https://github.com/dynamicgate/dynamicgate/blob/main/examples/gallery/{name}.py"
    heading, _, about = title.partition("\n")
    parts = [
        heading,
        NOTE.format(name=name),
        about,
        f"The whole script: [examples/gallery/{name}.py]({source}).",
        *rest,
    ]
    (PAGES / f"{name}.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(f"wrote docs/gallery/{name}.md in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    for each in sys.argv[1:] or sorted(path.stem for path in SCRIPTS.glob("*.py")):
        write_page(each)
