"""`fit`: a resumable training loop for one process or many, its log, and its checkpoints."""

from dynamicgate.training.fit_model import fit
from dynamicgate.training.log import History, read_log

__all__ = ["History", "fit", "read_log"]
