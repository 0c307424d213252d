"""The budget: what gates may use, how that is held over training, and what to do when gates collapse."""

from dynamicgate.budget.base import GateBudget
from dynamicgate.budget.calibration import calibrate_, check_reachable, executed_relative
from dynamicgate.budget.closed_loop import Budget
from dynamicgate.budget.collapse import Collapse, Reading, diagnose
from dynamicgate.budget.open_loop import OpenLoopBudget
from dynamicgate.budget.penalties import PENALTIES

__all__ = [
    "PENALTIES",
    "Budget",
    "Collapse",
    "GateBudget",
    "OpenLoopBudget",
    "Reading",
    "calibrate_",
    "check_reachable",
    "diagnose",
    "executed_relative",
]
