"""Inference ops on tensors: one op that runs a chain of gated and sparse layers. See ops/README.md."""

from dynamicgate.ops.chain.cpu import run
from dynamicgate.ops.chain.layers import GateNet, Layer
from dynamicgate.ops.chain.pack import Packed, pack
from dynamicgate.ops.chain.reference import reference
from dynamicgate.ops.kernels import backend

__all__ = ["GateNet", "Layer", "Packed", "backend", "pack", "reference", "run"]
