"""Continual learning: streams of tasks, what is retained of them, what is kept, and a readout that forgets nothing."""

from dynamicgate.continual.learners import EWC, SI, Learner, LwF
from dynamicgate.continual.readout import Readout
from dynamicgate.continual.replay import AGEM, DarkReplay, Replay
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
from dynamicgate.sparsity.keeper import Keeper

__all__ = [
    "AGEM",
    "EWC",
    "SI",
    "DarkReplay",
    "Keeper",
    "Learner",
    "LwF",
    "Readout",
    "Replay",
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
