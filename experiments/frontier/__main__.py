"""Accuracy against cost: every method at every budget, on every dataset.

python -m experiments.frontier mnist              # every method at every budget, five seeds; stored runs are found
python -m experiments.frontier mnist-tuning       # first: learning rates and dropouts, by validation rows
python -m experiments.frontier mnist-ablation     # the recipe with one thing changed at a time, by validation rows
python -m experiments.frontier all --jobs 16 --device cuda
python -m experiments.frontier latency mnist      # time the models trained here, with one thread; no name: all
python -m experiments.frontier page               # docs/why-it-works.md from the committed results
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from statistics import fmean

from dynamicgate.files import write_text
from dynamicgate.lab.runner import Experiment, Job
from dynamicgate.lab.runner.docs_pages import write_pages
from dynamicgate.lab.runner.results import read_results
from experiments.command import asked_experiment, exit_code, parser_of, run_asked
from experiments.frontier.datasets import CHOSEN, DATASETS
from experiments.frontier.experiment import FRONTIER, choose_tables
from experiments.frontier.latency import time_dataset
from experiments.frontier.page import pages

MODULE = "experiments.frontier"


def main() -> None:
    """Run what is asked for, then write the page."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument(
        "names",
        nargs="+",
        help="datasets, NAME-tuning, NAME-ablation, all, tuning or ablation (of all), or page; or latency, and "
        "after it datasets (all)",
    )
    parser.add_argument("--only", nargs="*", default=None, help="methods; all")
    parser.add_argument("--budgets", nargs="*", type=float, default=None, help="budgets; all")
    parser.add_argument("--seconds", type=float, default=0.4, help="latency: how long to time a model; 0.4")
    parser.add_argument("--repeats", type=int, default=3, help="latency: how often, the median counts; 3")
    args = parser.parse_args()
    experiment = asked_experiment(FRONTIER, args)
    if args.names[0] == "latency":
        time_asked(experiment, args)
    elif args.names != ["page"]:
        tables = [table for name in args.names for table in choose_tables(name)]
        jobs = [job for job in experiment.jobs(tables, seeds=args.seeds, device=args.device) if is_wanted(job, args)]
        run_asked(experiment, jobs, args, f"python -m {MODULE} {' '.join(args.names)}")
        if not args.quick:
            choose_best(experiment)
    write_pages(experiment.root, pages(experiment))


def time_asked(experiment: Experiment, args: argparse.Namespace) -> None:
    """Time the models of the datasets that are named, or of all."""
    names = args.names[1:] or list(DATASETS)
    unknown = [name for name in names if name not in DATASETS]
    if unknown:
        raise ValueError(f"unknown datasets {', '.join(unknown)}: those that can be timed are {', '.join(DATASETS)}")
    for name in names:
        time_dataset(
            experiment, name, wanted=lambda job: is_wanted(job, args), seconds=args.seconds, repeats=args.repeats,
            data_dir=args.data_dir,
        )  # fmt: skip


def is_wanted(job: Job, args: argparse.Namespace) -> bool:
    """Whether a model is among the methods and budgets asked for; models at full cost belong to every budget."""
    method = re.sub(r"( [\d.e-]+)+$", "", job.model)  # a name ends with its budget, or with what is tuned
    at_budget = args.budgets is None or job.settings.get("budget") in (None, *args.budgets)
    return at_budget and (args.only is None or method in args.only)


def choose_best(experiment: Experiment) -> None:
    """Write for every tuned method the settings with the best validation accuracy."""
    chosen = json.loads(CHOSEN.read_text(encoding="utf-8")) if CHOSEN.exists() else {}
    for table in choose_tables("tuning"):
        runs, _ = read_results(experiment.results, experiment.jobs([table]))
        best: dict[str, tuple[float, dict[str, float]]] = {}
        for (_, model), tried in runs.items():
            reached = [run["quality"]["accuracy"] for run in tried if "unreachable" not in run]
            if not reached:
                continue
            asked = table.models[model]
            found = fmean(reached), {key: asked[key] for key in ("lr", "dropout")}
            method = asked["model"]
            if method not in best or found[0] > best[method][0]:
                best[method] = found
        if best:
            chosen[table.name.removesuffix("-tuning")] = {method: values for method, (_, values) in best.items()}
    if chosen:
        write_text(CHOSEN, json.dumps(chosen, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
