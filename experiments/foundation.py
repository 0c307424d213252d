"""The results table of the README: five models on digits and MNIST at a fixed budget.

    python experiments/foundation.py            # train (or continue), write experiments/results/*.json, fill the README
    python experiments/foundation.py --tables   # only fill the README from the committed results

MNIST is read from the folder in DYNAMICGATE_DATA. Everything is resumable: run it again after an interruption.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from dynamicgate.cli import main as dynamicgate
from dynamicgate.files import write_text
from dynamicgate.report import summarise

HERE = Path(__file__).resolve().parent
README = HERE.parent / "README.md"
RUNS = {
    "digits": ["--data", "digits", "--models", "dense,small,dropout,static,gate", "--budget", "0.3", "--seeds", "5"],
    "mnist": ["--data", "mnist", "--models", "dense,small,dropout,static,gate", "--budget", "0.25", "--seeds", "3"],
}


def train(name: str) -> None:
    """Run the comparison and keep its results.json."""
    out = HERE.parent / "runs" / f"foundation-{name}"
    arguments = ["compare", *RUNS[name], "--out", str(out)]
    sys.argv = ["dynamicgate", *arguments[:-1], f"runs/foundation-{name}"]
    if dynamicgate(arguments) != 0:
        raise SystemExit(f"the comparison on {name} did not finish")
    (HERE / "results").mkdir(exist_ok=True)
    shutil.copyfile(out / "results.json", HERE / "results" / f"foundation-{name}.json")


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


def filled(readme: str, name: str, results: dict[str, Any]) -> str:
    """The README with the table of one data set put between its markers."""
    pattern = rf"(<!-- results:{name} -->\n).*?(\n<!-- /results:{name} -->)"
    return re.sub(pattern, lambda found: found[1] + table(results) + found[2], readme, flags=re.DOTALL)


def main() -> None:
    """Train what is missing, then fill the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", action="store_true", help="only fill the README from the committed results")
    parser.add_argument("--only", choices=list(RUNS), help="one data set")
    args = parser.parse_args()
    readme = README.read_text(encoding="utf-8")
    for name in [args.only] if args.only else RUNS:
        if not args.tables:
            train(name)
        results = json.loads((HERE / "results" / f"foundation-{name}.json").read_text(encoding="utf-8"))
        readme = filled(readme, name, results)
    write_text(README, readme)


if __name__ == "__main__":
    main()
