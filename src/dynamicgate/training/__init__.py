"""`fit`: a resumable training loop for one process or many, its log, and its checkpoints."""

from dynamicgate.training.callbacks import Callback, RunInfo
from dynamicgate.training.captured_step import CapturedStep
from dynamicgate.training.fit_model import fit
from dynamicgate.training.log import History, read_log
from dynamicgate.training.stage_loss import StageLoss

__all__ = ["Callback", "CapturedStep", "History", "RunInfo", "StageLoss", "fit", "read_log"]
