"""Plans: a trained model as chains of kernels, checked against the hard model and timed."""

from dynamicgate.inference.compile_model import compile
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.plan import LayerPlan, Plan, Regime
from dynamicgate.inference.verify import check

__all__ = ["CompiledModel", "LayerPlan", "Plan", "Regime", "check", "compile"]
