"""All tables on stages as one experiment, and the names that choose among them."""

from __future__ import annotations

from dynamicgate.lab.runner import Experiment, Table
from experiments import ROOT
from experiments.stages.tables import TILES, tables

KINDS = ("tuning", "rates", "ablation", "timed", TILES)
STAGES = Experiment("stages", tuple(tables()), ROOT)


def choose_tables(name: str) -> list[Table]:
    """The tables of a name: one of them, "all" comparisons, or all of a kind."""
    if name == "all":
        return [table for table in STAGES.tables if not table.name.endswith(KINDS)]
    if name in KINDS:
        return [table for table in STAGES.tables if table.name.endswith(f"-{name}")]
    return [STAGES.table(name)]
