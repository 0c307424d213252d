"""Networks: the paper's gated MLP, and the parts it is made of."""

from dynamicgate.nn.mlp import GatedMLP
from dynamicgate.nn.normalize import Normalize

__all__ = ["GatedMLP", "Normalize"]
