"""Run the tables of the paper again and write docs/paper.md.

python -m experiments.paper all --quick          # does everything run? results go to runs/paper-quick
python -m experiments.paper mnist                # one table: its three recipes, all models, all seeds
python -m experiments.paper cifar10/ours --device cuda --jobs 8
python -m experiments.paper page                 # only the page, from the results that are there
python -m experiments.paper prepare pbmc3k --out FOLDER   # data for machines that cannot read the original files

Runs that are stored are not repeated, interrupted ones continue. It needs torch, numpy and safetensors only.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dynamicgate.lab.runner.docs_pages import write_pages
from dynamicgate.lab.runner.prepared import prepare
from experiments.command import asked_experiment, exit_code, parser_of, run_asked
from experiments.paper.experiment import PAPER, choose_tables
from experiments.paper.page import pages

MODULE = "experiments.paper"


def main() -> None:
    """Parse and run."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("name", help="a table, one recipe of it such as mnist/ours, all, page, or prepare")
    parser.add_argument("tables", nargs="?", default="all", help="for prepare: the tables whose data to write")
    parser.add_argument("--out", type=Path, default=Path("prepared"), help="for prepare: the folder to write to")
    args = parser.parse_args()
    if args.name == "prepare":
        for path in prepare(choose_tables(args.tables), args.out, args.data_dir):
            print(path)
        return
    experiment = asked_experiment(PAPER, args)
    if args.name != "page":
        jobs = experiment.jobs(choose_tables(args.name), seeds=args.seeds, device=args.device)
        run_asked(experiment, jobs, args, f"python -m {MODULE} {args.name}")
    write_pages(experiment.root, pages(experiment))


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
