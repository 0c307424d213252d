"""Inference: compile a trained model into a plan that is verified against the model and timed against dense."""

from dynamicgate.inference.compile_model import compile
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.verify import verify_model
from dynamicgate.inference.plan import LayerPlan, Plan, Regime, Verification

__all__ = ["CompiledModel", "LayerPlan", "Plan", "Regime", "Verification", "compile", "verify_model"]
