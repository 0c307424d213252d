"""Stages against the same recipe without them: accuracy at equal cost, the curve of one model, and the clock.

python -m experiments.stages mnist-tuning        # first: two or three stages, by validation rows
python -m experiments.stages mnist-rates         # and the learning rate at the smallest budget
python -m experiments.stages mnist               # stages, no stages and a cascade at every budget, five seeds
python -m experiments.stages mnist-16x1          # the same with masks of tiles of 16 outputs
python -m experiments.stages mnist-ablation      # what decides, attention, distillation, weights; validation rows
python -m experiments.stages mnist-timed         # the models that are timed
python -m experiments.stages latency mnist       # time them here, with one thread, over the stream of test inputs
python -m experiments.stages page                # docs/stages.md from the committed results
"""

from __future__ import annotations

import json
import sys
from statistics import fmean

from dynamicgate.files import write_text
from dynamicgate.lab.runner import Experiment, Table
from dynamicgate.lab.runner.docs_pages import write_pages
from dynamicgate.lab.runner.results import read_results
from experiments.command import asked_experiment, exit_code, parser_of, run_asked
from experiments.stages.experiment import STAGES, choose_tables
from experiments.stages.latency import time_dataset
from experiments.stages.page import pages
from experiments.stages.tables import CHOSEN, SINGLE, STAGED, TIMED, TRIALS, chosen_stages

MODULE = "experiments.stages"


def main() -> None:
    """Run what is asked for, then write the page."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument(
        "names",
        nargs="+",
        help="datasets or NAME-tuning, NAME-rates, NAME-16x1, NAME-ablation, NAME-timed; all, tuning, rates, 16x1, "
        "ablation, timed (of all), or page; or latency, and after it datasets (all)",
    )
    args = parser.parse_args()
    experiment = asked_experiment(STAGES, args)
    if args.names[0] == "latency":
        for name in args.names[1:] or TIMED:
            time_dataset(experiment, name, data_dir=args.data_dir)
    elif args.names != ["page"]:
        asked = [table for name in args.names for table in choose_tables(name)]
        jobs = experiment.jobs(asked, seeds=args.seeds, device=args.device)
        run_asked(experiment, jobs, args, f"python -m {MODULE} {' '.join(args.names)}")
        if not args.quick:
            choose_best(experiment)
    if not args.quick:
        write_pages(experiment.root, pages(experiment))


def choose_best(experiment: Experiment) -> None:
    """Write for every dataset that was tuned the stages, and the learning rates, with the best validation accuracy."""
    chosen = chosen_stages()
    for table in choose_tables("tuning"):
        if reached := reached_by(experiment, table):
            chosen[table.name.removesuffix("-tuning")] = TRIALS[max(reached, key=lambda trial: reached[trial])]
    for table in choose_tables("rates"):
        reached = reached_by(experiment, table)
        for kind in (SINGLE, STAGED):
            if rates := {model: rate for model, rate in reached.items() if model.startswith(kind)}:
                best = max(rates, key=lambda model: rates[model])
                chosen.setdefault(table.name, {})[kind] = table.models[best]["lr"]
    if chosen:
        write_text(CHOSEN, json.dumps(chosen, indent=1, sort_keys=True) + "\n")


def reached_by(experiment: Experiment, table: Table) -> dict[str, float]:
    """The mean accuracy on validation rows of the models of a table that were run."""
    runs, _ = read_results(experiment.results, experiment.jobs([table]))
    return {
        model: fmean(run["quality"]["accuracy"] for run in tried)
        for (_, model), tried in runs.items()
        if tried and all("unreachable" not in run for run in tried)
    }


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
