"""Continual learning: streams of tasks, a loop that follows them, what is retained and kept, and what others do.

More learners are in `replay`, `learners` and `plasticity`.
"""

from dynamicgate.continual.contexts import Contexts
from dynamicgate.continual.following import follow
from dynamicgate.continual.learners import EWC, SI, Learner
from dynamicgate.continual.learners import LwF as LwF
from dynamicgate.continual.plasticity import L2 as L2
from dynamicgate.continual.plasticity import L2Init as L2Init
from dynamicgate.continual.plasticity import ShrinkAndPerturb as ShrinkAndPerturb
from dynamicgate.continual.reading_out import read_out as read_out
from dynamicgate.continual.reading_out import readout_model as readout_model
from dynamicgate.continual.readout import Readout
from dynamicgate.continual.replay import AGEM as AGEM
from dynamicgate.continual.replay import DarkReplay as DarkReplay
from dynamicgate.continual.replay import Replay
from dynamicgate.continual.retention import Retention
from dynamicgate.continual.streams import (
    Stream,
    Task,
    drifting,
    grouped,
    in_order,
    joined,
    labels_shuffled,
    permuted,
    rotated,
    some_rows,
    split,
)
from dynamicgate.sparsity.keeper import Keeper

__all__ = [
    "EWC",
    "SI",
    "Contexts",
    "Keeper",
    "Learner",
    "Readout",
    "Replay",
    "Retention",
    "Stream",
    "Task",
    "drifting",
    "follow",
    "grouped",
    "in_order",
    "joined",
    "labels_shuffled",
    "permuted",
    "rotated",
    "some_rows",
    "split",
]
