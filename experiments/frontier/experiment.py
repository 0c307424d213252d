"""All tables of the frontier as one experiment, and the names that choose among them."""

from __future__ import annotations

from dynamicgate.lab.runner import Experiment, Table
from experiments import ROOT
from experiments.frontier import ablation, datasets

KINDS = ("tuning", "ablation")
FRONTIER = Experiment("frontier", (*datasets.tables(), *ablation.tables()), ROOT)


def choose_tables(name: str) -> list[Table]:
    """The tables of a name: a dataset, NAME-tuning, NAME-ablation; "all" datasets, "tuning" or "ablation" of all."""
    if name == "all":
        return [FRONTIER.table(dataset) for dataset in datasets.DATASETS]
    if name in KINDS:
        return [table for table in FRONTIER.tables if table.name.endswith(f"-{name}")]
    return [FRONTIER.table(name)]
