"""A chain of gated and sparse layers on the CPU: h <- factor * phi(W h + b), open blocks only. See README.md here."""

from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.chain.packing import Packed, pack
from dynamicgate.ops.chain.reference import reference_chain
from dynamicgate.ops.chain.registration import run

__all__ = ["Layer", "Packed", "pack", "reference_chain", "run"]
