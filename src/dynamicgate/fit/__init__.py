"""Training: one loop, resumable, on one process or many."""

from dynamicgate.fit.log import History, read_log
from dynamicgate.fit.start import fit

__all__ = ["History", "fit", "read_log"]
