"""Networks: the paper's gated MLP and its mixture of experts, and the parts they and Transformers are made of."""

from dynamicgate.nn.ffn import FFN
from dynamicgate.nn.mlp import GatedMLP
from dynamicgate.nn.normalize import Normalize
from dynamicgate.nn.switch import Switch, SwitchMLP

__all__ = ["FFN", "GatedMLP", "Normalize", "Switch", "SwitchMLP"]
