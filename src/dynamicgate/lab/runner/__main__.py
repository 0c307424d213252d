"""`python -m dynamicgate.paper`: the same as `dynamicgate paper`, with nothing but torch, numpy and safetensors."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dynamicgate.lab.runner.command import run_paper
from dynamicgate.lab.runner.jobs import find_folder, load_tables
from dynamicgate.lab.runner.prepared import prepare


def main() -> int:
    """Parse and run."""
    parser = argparse.ArgumentParser(prog="python -m dynamicgate.paper", description=__doc__)
    parser.add_argument("name", help="a table, table/kind such as mnist/ours, all, page, or prepare")
    parser.add_argument("tables", nargs="?", default="all", help="for prepare: whose data")
    parser.add_argument("--quick", action="store_true", help="one seed, few rows and epochs; results apart")
    parser.add_argument("--seeds", type=int, default=None, help="only the first so many seeds of each recipe")
    parser.add_argument("--jobs", type=int, default=None, help="runs side by side, one thread each; all cores")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--recipes", type=Path, default=None, help="folder with the recipe files")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with the data files")
    parser.add_argument("--out", type=Path, default=Path("prepared"), help="for prepare: where to")
    args = parser.parse_args()
    try:
        if args.name == "prepare":
            for path in prepare(load_tables(find_folder(args.recipes), args.tables), args.out, args.data_dir):
                print(path)
            return 0
        return run_paper(
            args.name, quick=args.quick, seeds=args.seeds, jobs=args.jobs, device=args.device, recipes=args.recipes,
            data_dir=args.data_dir, command=" ".join(["python -m dynamicgate.paper", args.name]),
        )  # fmt: skip
    except ValueError as error:
        print(f"dynamicgate.paper: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
