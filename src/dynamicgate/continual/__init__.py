"""Continual learning: streams of tasks, what was retained of them, and a readout that forgets nothing."""

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
