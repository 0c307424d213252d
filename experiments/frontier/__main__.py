"""Accuracy against cost: every method at every budget, on every dataset. protocol.md says what is run and why.

python -m experiments.frontier tuning --jobs 16 --device cuda    # first: settings of all methods, by validation rows
python -m experiments.frontier all --jobs 16 --device cuda       # every method at every budget; stored runs are found
python -m experiments.frontier all --dry-run       # how many runs are left of each table
python -m experiments.frontier tuning digits       # one dataset
python -m experiments.frontier digits --only rigl --budgets 0.1
python -m experiments.frontier tuning digits --only static --again    # stored runs too: the code behind has changed
python -m experiments.frontier oracle digits       # what choosing units by the input gains if the choice is free
python -m experiments.frontier latency mnist       # time the models trained here, with one thread; no name: all
python -m experiments.frontier page                # docs/why-it-works.md from the committed results
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace

from dynamicgate.files import write_text
from dynamicgate.lab.runner import Experiment
from dynamicgate.lab.runner.docs_pages import write_pages
from dynamicgate.lab.runner.results import find_runs
from experiments.command import asked_experiment, exit_code, parser_of, run_asked
from experiments.frontier.again import forget
from experiments.frontier.datasets import method_of
from experiments.frontier.experiment import FRONTIER, datasets_of
from experiments.frontier.latency import time_dataset
from experiments.frontier.looks import count_another_look
from experiments.frontier.methods import AT_A_BUDGET, BUDGETS, DENSE, TUNED, WITHOUT_GATES
from experiments.frontier.oracle import ORACLE
from experiments.frontier.page import pages
from experiments.frontier.tables import CHOSEN, GATES, read_chosen, tables_of
from experiments.frontier.tuning import Tuning

MODULE = "experiments.frontier"


def main() -> None:
    """Run what is asked for, then write the page."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument(
        "names", nargs="+", help="datasets or all; tuning, oracle or latency, and after it datasets (all); or page"
    )
    parser.add_argument("--only", nargs="*", default=None, help="methods; all")
    parser.add_argument("--budgets", nargs="*", type=float, default=None, help="budgets; all")
    parser.add_argument("--dry-run", action="store_true", help="say how many runs are left, and run nothing")
    parser.add_argument(
        "--again", action="store_true", help="make stored runs of --only again; once, then go on without"
    )
    args = parser.parse_args()
    check_asked(args)
    experiment = asked_experiment(FRONTIER, args)
    command, names = args.names[0], args.names[1:]
    if command == "tuning":
        tune(experiment, datasets_of(names), args)
    elif command == ORACLE:
        run_tables(with_chosen(experiment), [f"{name}-{ORACLE}" for name in datasets_of(names)], args)
    elif command == "latency":
        for name in datasets_of(names):
            time_dataset(
                experiment, name, wanted=lambda job: is_wanted(*method_of(job.model), args), data_dir=args.data_dir
            )
    elif command != "page":
        if not (experiment.quick or args.dry_run):
            check_tuned(datasets_of(args.names))
        run_tables(with_chosen(experiment), datasets_of(args.names), args)
    if not args.dry_run:
        write_pages(experiment.root, pages(with_chosen(experiment)))


def with_chosen(experiment: Experiment) -> Experiment:
    """The experiment with what tuning has chosen by now; a quick one chooses nothing for good."""
    return experiment if experiment.quick else replace(experiment, tables=tables_of(read_chosen()))


def check_asked(args: argparse.Namespace) -> None:
    """Refuse methods and budgets that there are none of."""
    if unknown := [method for method in args.only or () if method not in (DENSE, *AT_A_BUDGET)]:
        raise ValueError(f"unknown methods {', '.join(unknown)}: there are {', '.join((DENSE, *AT_A_BUDGET))}")
    if args.again and (not args.only or args.dry_run or args.quick):
        raise ValueError("--again: name methods with --only, and leave out --quick and --dry-run")
    if unknown := [f"{budget:g}" for budget in args.budgets or () if budget not in BUDGETS]:
        raise ValueError(f"unknown budgets {', '.join(unknown)}: there are {', '.join(map(str, BUDGETS))}")


def is_wanted(method: str, budget: float | None, args: argparse.Namespace) -> bool:
    """Whether a method at a budget is among those asked for; what has no budget belongs to every one."""
    return (args.only is None or method in args.only) and (args.budgets is None or budget in (None, *args.budgets))


def tune(experiment: Experiment, names: Sequence[str], args: argparse.Namespace) -> None:
    """Search what is not known yet, and write what is chosen."""
    if args.again:
        forget(experiment, [f"{name}-tuning" for name in names], args.only)
    tuning = Tuning(
        experiment,
        names,
        wanted=lambda method, budget: is_wanted(method, budget, args),
        seeds=args.seeds,
        device=args.device,
    )
    if args.dry_run:
        total = [tuning.left(name) for name in names]
        for name, (least, most) in zip(names, total, strict=True):
            print(f"{name}-tuning: {least} to {most} runs left")
        print(f"in all: {sum(least for least, _ in total)} to {sum(most for _, most in total)} runs left")
        return
    run_asked(experiment, tuning.all_jobs(), args, f"python -m {MODULE} {' '.join(args.names)}", more=tuning.after)
    if not experiment.quick:
        merged = read_chosen()
        for name, chosen in tuning.chosen.items():
            if chosen:
                merged[name] = {**merged.get(name, {}), **chosen}
        write_text(CHOSEN, json.dumps(merged, indent=1, sort_keys=True) + "\n")


def run_tables(experiment: Experiment, names: Sequence[str], args: argparse.Namespace) -> None:
    """Train every model of these tables at every budget; this looks at test rows."""
    tables = [experiment.table(name) for name in names]
    if args.again:
        count_another_look(forget(experiment, names, args.only))
    jobs = [
        job
        for job in experiment.jobs(tables, seeds=args.seeds, device=args.device)
        if is_wanted(*method_of(job.model), args)
    ]
    found, stale = find_runs(experiment.results, jobs)
    if args.dry_run:
        done = [job.table.name for job, _ in found]
        asked = [job.table.name for job in jobs]
        for name in names:
            print(f"{name}: {asked.count(name) - done.count(name)} of {asked.count(name)} runs left")
        print(f"in all: {len(jobs) - len(found)} of {len(jobs)} runs left")
        return
    if not experiment.quick:
        count_another_look(stale)
    run_asked(experiment, jobs, args, f"python -m {MODULE} {' '.join(args.names)}")


def check_tuned(names: Sequence[str]) -> None:
    """Refuse to look at test rows before tuning has ended."""
    chosen = read_chosen()
    for name in names:
        kinds = chosen.get(name, {}).get(GATES, {})
        missing = [method for method in TUNED if method not in chosen.get(name, {})]
        missing += [
            ours
            for ours, without in WITHOUT_GATES.items()
            if chosen.get(name, {}).get(without, {}) is not None and len(kinds.get(ours, {})) < len(BUDGETS)
        ]
        if missing:
            raise ValueError(
                f"tuning has not ended on {name} ({', '.join(missing)}): run `python -m {MODULE} tuning {name}` first"
            )


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
