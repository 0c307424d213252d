"""A chain of gated and sparse layers on the CPU: h <- factor * phi(W h + b), open blocks only. See README.md here."""

from dynamicgate.ops.chain.checking import check_packed
from dynamicgate.ops.chain.layers import FITS, Layer
from dynamicgate.ops.chain.packing import Packed, pack
from dynamicgate.ops.chain.reference import reference_chain
from dynamicgate.ops.chain.registration import run, run_directly
from dynamicgate.ops.chain.rounding import rounded_to_bytes
from dynamicgate.ops.chain.stage_packing import pack_staged
from dynamicgate.ops.chain.stages import Head, Staged, reference_staged

__all__ = [
    "FITS",
    "Head",
    "Layer",
    "Packed",
    "Staged",
    "check_packed",
    "pack",
    "pack_staged",
    "reference_chain",
    "reference_staged",
    "rounded_to_bytes",
    "run",
    "run_directly",
]
