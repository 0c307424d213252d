"""Which connections exist, and how that changes in training: RigL, SET, fixed random masks, magnitude pruning."""

from dynamicgate.rewire.density import Distribution, densities
from dynamicgate.rewire.grow import SET, RigL, Static
from dynamicgate.rewire.prune import Magnitude
from dynamicgate.rewire.rewirer import LayerOptions, Rewirer, SparseLayer

__all__ = [
    "SET", "Distribution", "LayerOptions", "Magnitude", "Rewirer", "RigL", "SparseLayer", "Static", "densities",
]  # fmt: skip
