"""Ops on tensors: chains of layers in C++ on the CPU, feed-forward layers in Triton on the GPU. See README.md here."""

from dynamicgate.ops import chain, ffn
from dynamicgate.ops.gate_net import GateNet
from dynamicgate.ops.native import backend

__all__ = ["GateNet", "backend", "chain", "ffn"]
