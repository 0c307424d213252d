"""All tables of the frontier as one experiment, and the names that choose among them."""

from __future__ import annotations

from dynamicgate.lab.runner import Experiment
from experiments import ROOT
from experiments.frontier.datasets import DATASETS
from experiments.frontier.tables import read_chosen, tables_of

FRONTIER = Experiment("frontier", tables_of(read_chosen()), ROOT)


def datasets_of(names: list[str]) -> list[str]:
    """The datasets of these names; none, or "all", are all."""
    if unknown := [name for name in names if name not in (*DATASETS, "all")]:
        raise ValueError(f"unknown datasets {', '.join(unknown)}: there are {', '.join(DATASETS)}, and all")
    return list(DATASETS) if not names or "all" in names else names
