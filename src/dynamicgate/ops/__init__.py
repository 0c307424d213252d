"""Ops on tensors: chains and decoders in C++ on the CPU, feed-forward layers in Triton on the GPU. See README.md."""

from dynamicgate.ops import chain, decoder, ffn
from dynamicgate.ops.gate_net import GateNet
from dynamicgate.ops.native import backend

__all__ = ["GateNet", "backend", "chain", "decoder", "ffn"]
