"""Recipes that need a budget and nothing else: `sparsify_`, and how a budget is divided over stages."""

from dynamicgate.presets.sparsify import sparsify_
from dynamicgate.presets.sparsity_plan import SparsityPlan
from dynamicgate.presets.stages import PLANS, StagePlan, add_stages_, stage_costs

__all__ = ["PLANS", "SparsityPlan", "StagePlan", "add_stages_", "sparsify_", "stage_costs"]
