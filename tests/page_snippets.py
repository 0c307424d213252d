"""Runs the Python blocks of a page one after the other, in a process that has imported torch already.

A page that needs torchrun, or a file of the reader's, gets both here: what the docs print runs as it is.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests import forked
from tests.places import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TABLE = "id,age,smoker,outcome\n" + "".join(
    f"{row},{20 + row * 7 % 60},{'yes' if row % 3 else 'no'},{'high' if row % 2 else 'low'}\n" for row in range(120)
)
FILES = {"data": {"table.csv": TABLE}}  # by page, what the reader is assumed to have
CELLS = """
import anndata, numpy, os, pandas
os.environ["MPLBACKEND"] = "Agg"
random = numpy.random.default_rng(0)
kinds = random.integers(2, size=200)
counts = random.poisson(1.0 + 4.0 * (kinds[:, None] == numpy.arange(30) % 2)).astype("float32")
names = pandas.DataFrame(index=[f"gene {i}" for i in range(30)])
about = pandas.DataFrame({"cell_type": kinds.astype(str)}, [f"cell {i}" for i in range(200)])
cells = anndata.AnnData(counts, about, names)
cells.obsm["X_umap"] = random.normal(size=(200, 2))
cells.write_h5ad("cells.h5ad")
cells[:, ::-1].copy().write_h5ad("new.h5ad")
from dynamicgate.lab.cli import main
words = "train --data cells.h5ad --target cell_type --data-option preprocess=counts --out runs/cells"
assert main([*words.split(), "--epochs", "2", "--hidden", "16"]) == 0
"""
BEFORE = {"omics": CELLS}  # by page, what makes it
OTHERS_WARN = ("integrations", "omics")  # pages on other packages, which warn about themselves
ONE_PROCESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}  # as torchrun sets them
# Timing lasts as long as it may, and what is fastest here is of no interest.
BRIEFLY = "import dynamicgate; dynamicgate.compile.__kwdefaults__['seconds'] = 0.5"
SECONDS = 240


def blocks(page: Path, language: str) -> list[str]:
    """The code of a page in this language, in order."""
    return [code for found, code in FENCE.findall(page.read_text(encoding="utf-8")) if found == language]


def run_page(page: Path, folder: Path) -> str:
    """Run all Python blocks of a page in `folder` and return what they print; AssertionError if one fails."""
    for name, text in FILES.get(page.stem, {}).items():
        (folder / name).write_text(text, encoding="utf-8")
    code = "\n".join([BEFORE.get(page.stem, ""), *blocks(page, "python")])
    return run_code(code, folder, strict=page.stem not in OTHERS_WARN)


def run_code(code: str, folder: Path, *, strict: bool = True) -> str:
    """Run code in a process of its own, if strict with warnings as errors, and return what it prints."""
    first = f"{BRIEFLY}; import warnings; warnings.simplefilter({'error' if strict else 'ignore'!r})"
    ended = forked.run(["-c", f"{first}\n{code}"], cwd=folder, env=ONE_PROCESS, seconds=SECONDS)
    printed = ended.stdout + ended.stderr
    assert ended.returncode == 0, f"it ended with status {ended.returncode}: {printed[-3000:]}"
    return printed
