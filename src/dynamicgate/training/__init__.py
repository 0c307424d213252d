"""Training: one loop, resumable, on one process or many."""

from dynamicgate.training.fit_model import fit
from dynamicgate.training.log import History, read_log

__all__ = ["History", "fit", "read_log"]
