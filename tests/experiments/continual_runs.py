"""Quick runs of the continual experiments, for their tests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.continual import cells
from experiments.continual.tables import CONTINUAL

from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.runner import Job


def as_cells(splits: Splits) -> cells.Cells:
    """The same rows, and some by which settings can be chosen."""
    return cells.Cells(splits.name, splits.train, splits.valid, splits.test, splits.classes, 0.0, 1.0, inner=splits)


def quick(table: str, model: str, work: Path, **settings: Any) -> Job:
    found = CONTINUAL.table(table)
    found = replace(found, quick={**found.quick, **settings})
    return Job(found, model, 0, quick=True, work=work, device="cpu")
