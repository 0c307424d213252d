"""Models with sparse layers and their controls on MNIST, at equal density and at equal budgets: tables of a docs page.

python -m experiments.sparse_mnist           # train what is missing, fill the tables of docs/sparsity.md
python -m experiments.sparse_mnist budget    # one of the two tables
python -m experiments.sparse_mnist page      # only fill the tables, from the committed results

MNIST is read from the folder in DYNAMICGATE_DATA.
"""

from __future__ import annotations

import sys

from dynamicgate.lab.report import summarise
from dynamicgate.lab.runner import Experiment, Table, train_settings
from dynamicgate.lab.runner.docs_pages import markdown, write_pages
from dynamicgate.lab.runner.results import read_results
from experiments import ROOT
from experiments.command import asked_experiment, exit_code, parser_of, run_asked

MODULE = "experiments.sparse_mnist"
PAGE = "docs/sparsity.md"
MARKERS = {"density": "sparse-mnist-density", "budget": "sparse-mnist-budget"}
CONTROLS = ("dense", "small", "dropout", "static", "gate")
SPARSE = ("static-sparse", "set", "rigl", "pruned")
# The stored runs of gate+rigl were made before its present defaults, so what they were made with is spelled out.
EARLIER_DEFAULTS = {
    "density": 0.12, "gate_fraction": 0.2, "policy": "gumbel", "initial_density": 0.0, "distribution": "uniform",
    "widen": 1.0,
}  # fmt: skip
AT_A_DENSITY = Table(
    name="density",
    data="mnist",
    models={name: {"budget": 0.1, "density": 0.09} for name in SPARSE},
    train=train_settings,
    seeds=(0, 1, 2),
)
AT_A_BUDGET = Table(
    name="budget",
    data="mnist",
    models={
        **{name: {"budget": 0.1} for name in (*CONTROLS, *SPARSE)},
        "gate+rigl": {"budget": 0.1, **EARLIER_DEFAULTS},
        "switch": {"budget": 0.1},
    },
    train=train_settings,
    seeds=(0, 1, 2),
)
SPARSE_MNIST = Experiment("sparse-mnist", (AT_A_DENSITY, AT_A_BUDGET), ROOT)


def pages(experiment: Experiment) -> dict[str, dict[str, str]]:
    """The tables, by their markers in the page."""
    runs, _ = read_results(experiment.results, experiment.jobs())
    sections = {}
    for table in experiment.tables:
        mine = [run for model in table.models for run in runs.get((table.name, model), [])]
        if mine:
            sections[MARKERS[table.name]] = f"`python -m {MODULE} {table.name}`\n\n{table_of(mine)}"
    return {PAGE: sections}


def table_of(runs: list[dict[str, object]]) -> str:
    """Mean ± standard deviation over seeds of each model."""
    rows = []
    for row in summarise({"runs": runs}):
        accuracy, relative = row["accuracy"], row["relative"]
        rows.append(
            [
                row["model"],
                f"{accuracy['mean'] * 100:.2f} ± {accuracy['std'] * 100:.2f}",
                f"{relative['mean']:.3f} ± {relative['std']:.3f}",
                f"{row['relative_zero_skip']['mean']:.3f}",
                f"{row['params']['mean']:,.0f}",
            ]
        )
    columns = ["model", "test accuracy, %", "executed MACs of dense", "skipping zeros too", "parameters"]
    return markdown(columns, rows)


def main() -> None:
    """Train what is missing, then fill the tables."""
    parser = parser_of(MODULE, __doc__)
    parser.add_argument("name", nargs="?", default="all", help="density, budget, all or page")
    args = parser.parse_args()
    experiment = asked_experiment(SPARSE_MNIST, args)
    if args.name != "page":
        tables = experiment.tables if args.name == "all" else [experiment.table(args.name)]
        jobs = experiment.jobs(tables, seeds=args.seeds, device=args.device)
        run_asked(experiment, jobs, args, f"python -m {MODULE} {args.name}")
    if not args.quick:
        write_pages(experiment.root, pages(experiment))


if __name__ == "__main__":
    sys.exit(exit_code(main, MODULE))
