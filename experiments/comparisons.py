"""The tables of docs/rewiring.md: models and their controls at equal budgets.

    python experiments/comparisons.py              # train (or continue), write experiments/results/, fill the pages
    python experiments/comparisons.py --tables     # only fill the pages from the committed results
    python experiments/comparisons.py --only rewiring-mnist-budget --jobs 8

MNIST is read from the folder in DYNAMICGATE_DATA. Everything is resumable: run it again after an interruption. With
`--jobs` models are trained side by side, each in a process with one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamicgate.files import write_text
from dynamicgate.lab.methods import Settings, compare
from dynamicgate.lab.report import markdown_tables, summarise

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
CONTROLS = ("dense", "small", "dropout", "static", "gate")
SPARSE = ("static-sparse", "set", "rigl", "pruned")


@dataclass(frozen=True)
class Comparison:
    """Models over seeds, and the page whose table they fill."""

    page: str
    settings: Settings
    models: tuple[str, ...]
    seeds: int


COMPARISONS = {
    "rewiring-mnist-density": Comparison(
        "docs/rewiring.md", Settings("mnist", budget=0.1, density=0.09), SPARSE, seeds=3
    ),
    "rewiring-mnist-budget": Comparison(
        "docs/rewiring.md", Settings("mnist", budget=0.1), (*CONTROLS, *SPARSE, "gate+rigl", "switch"), seeds=3
    ),
}


def train(name: str, models: tuple[str, ...]) -> None:
    """Run the comparison; with all its models, keep its results.json."""
    asked, out = COMPARISONS[name], ROOT / "runs" / name
    command = f"python experiments/comparisons.py --only {name}"
    compare(asked.settings, models, range(asked.seeds), out, command=command)
    if models == asked.models:
        (HERE / "results").mkdir(exist_ok=True)
        shutil.copyfile(out / "results.json", HERE / "results" / f"{name}.json")


def side_by_side(script: str, calls: Iterable[Sequence[str]], jobs: int) -> None:
    """A process with one thread for each call of a script; what they finish is then found."""

    def one(words: Sequence[str]) -> None:
        subprocess.run([sys.executable, script, *words], env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, calls))


def table(results: dict[str, Any]) -> str:
    """The results as a Markdown table: mean ± standard deviation over seeds."""
    meta = results["meta"]
    lines = [
        f"`{meta['command']}`",
        "",
        "| model | test accuracy, % | executed MACs of dense | skipping zeros too | parameters |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in summarise(results):
        accuracy, relative = row["accuracy"], row["relative"]
        cells = (
            row["model"],
            f"{accuracy['mean'] * 100:.2f} ± {accuracy['std'] * 100:.2f}",
            f"{relative['mean']:.3f} ± {relative['std']:.3f}",
            f"{row['relative_zero_skip']['mean']:.3f}",
            f"{row['params']['mean']:,.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def filled(page: str, name: str, results: dict[str, Any]) -> str:
    """A page with the table of one comparison put between its markers."""
    return markdown_tables.filled(page, name, table(results))


def main() -> None:
    """Train what is missing, then fill the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="only fill the pages from the committed results")
    parser.add_argument("--only", choices=list(COMPARISONS), help="one comparison")
    parser.add_argument("--models", help="only these models of it, separated by commas; leaves no results")
    parser.add_argument("--jobs", type=int, default=1, help="models trained side by side")
    args = parser.parse_args()
    for name in [args.only] if args.only else COMPARISONS:
        asked = COMPARISONS[name]
        models = tuple(args.models.split(",")) if args.models else asked.models
        if not args.tables:
            if args.jobs > 1 and not args.models:
                side_by_side(__file__, [["--only", name, "--models", model] for model in asked.models], args.jobs)
            train(name, models)
        if models == asked.models:
            results = json.loads((HERE / "results" / f"{name}.json").read_text(encoding="utf-8"))
            page = ROOT / asked.page
            write_text(page, filled(page.read_text(encoding="utf-8"), name, results))


if __name__ == "__main__":
    main()
