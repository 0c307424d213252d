"""Sparse training: which connections exist, and how they change. RigL, SET, static masks, magnitude pruning."""

from dynamicgate.sparsity.base import LayerOptions, Sparsifier
from dynamicgate.sparsity.consolidation import Consolidation
from dynamicgate.sparsity.density import Distribution, densities
from dynamicgate.sparsity.finalize import finalize_
from dynamicgate.sparsity.keeper import Keeper
from dynamicgate.sparsity.layer import SparseLayer
from dynamicgate.sparsity.magnitude import Magnitude
from dynamicgate.sparsity.recycling import Recycler
from dynamicgate.sparsity.regions import SparseRegion
from dynamicgate.sparsity.rigl import RigL
from dynamicgate.sparsity.set import SET
from dynamicgate.sparsity.static import Static

__all__ = [
    "SET",
    "Consolidation",
    "Distribution",
    "Keeper",
    "LayerOptions",
    "Magnitude",
    "Recycler",
    "RigL",
    "SparseLayer",
    "SparseRegion",
    "Sparsifier",
    "Static",
    "densities",
    "finalize_",
]  # fmt: skip
