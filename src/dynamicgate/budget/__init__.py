"""The budget: how much may be open, how that moves over training, and what to do when gates collapse."""

from dynamicgate.budget.calibration import check_reachable, cut, executed_relative
from dynamicgate.budget.closed_loop import Budget
from dynamicgate.budget.collapse import Collapse, Reading, diagnose
from dynamicgate.budget.penalties import PENALTIES

__all__ = ["PENALTIES", "Budget", "Collapse", "Reading", "check_reachable", "cut", "diagnose", "executed_relative"]
