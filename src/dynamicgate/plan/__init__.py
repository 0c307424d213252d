"""Plans: a trained model as chains of kernels, checked against the hard model and timed."""

from dynamicgate.plan.check import check
from dynamicgate.plan.compile import compile
from dynamicgate.plan.fast import Fast
from dynamicgate.plan.plan import LayerPlan, Plan, Regime

__all__ = ["Fast", "LayerPlan", "Plan", "Regime", "check", "compile"]
