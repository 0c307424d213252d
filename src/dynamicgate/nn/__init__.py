"""Layers and networks: a gated MLP, a mixture of experts, the feed-forward layer of a Transformer, normalisation."""

from dynamicgate.nn.ffn import FFN
from dynamicgate.nn.mlp import GatedMLP
from dynamicgate.nn.normalize import Normalize
from dynamicgate.nn.switch import Switch, SwitchMLP

__all__ = ["FFN", "GatedMLP", "Normalize", "Switch", "SwitchMLP"]
