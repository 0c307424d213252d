"""Continual learning: streams of tasks, what is retained of them, what is kept, and a readout that forgets nothing."""

from dynamicgate.continual.keeper import Keeper
from dynamicgate.continual.readout import Readout
from dynamicgate.continual.retention import Retention
from dynamicgate.continual.streams import (
    Stream,
    Task,
    drifting,
    grouped,
    in_order,
    labels_shuffled,
    permuted,
    rotated,
    some_rows,
    split,
)

__all__ = [
    "Keeper",
    "Readout",
    "Retention",
    "Stream",
    "Task",
    "drifting",
    "grouped",
    "in_order",
    "labels_shuffled",
    "permuted",
    "rotated",
    "some_rows",
    "split",
]
