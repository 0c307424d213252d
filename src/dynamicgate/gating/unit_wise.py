"""Operations that act on each unit by itself, so that a closed one cannot change its neighbours."""

from __future__ import annotations

import operator

import torch
from torch import fx, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS, is_of_transformers

ACTIVATION_CALLS = {call for activation in ACTIVATIONS.values() for call in activation.calls}
UNIT_WISE_MODULES = (
    *(activation.module for activation in ACTIVATIONS.values()), nn.ELU, nn.SELU, nn.CELU, nn.ReLU6, nn.LeakyReLU,
    nn.Sigmoid, nn.Softplus, nn.Hardswish, nn.Mish, nn.Dropout, nn.BatchNorm1d,
)  # fmt: skip
UNIT_WISE_FUNCTIONS = {call for call in ACTIVATION_CALLS if callable(call)} | {
    F.elu, F.selu, F.celu, F.relu6, F.leaky_relu, F.sigmoid, F.softplus, F.hardswish, F.mish, F.dropout, torch.sigmoid,
    torch.square, torch.mul, operator.mul,
}  # fmt: skip
UNIT_WISE_METHODS = {call for call in ACTIVATION_CALLS if isinstance(call, str)} | {
    "sigmoid", "square", "mul", "contiguous", "clone",
}  # fmt: skip
RESHAPES = {torch.flatten, "flatten", "view", "reshape"}


def passes_units(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether a node of a traced model is unit-wise."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        unit_wise = isinstance(module, UNIT_WISE_MODULES) or is_of_transformers(module)
        return unit_wise or getattr(module, "unit_wise", False)
    if node.op == "call_function":
        return node.target in UNIT_WISE_FUNCTIONS
    return node.op == "call_method" and node.target in UNIT_WISE_METHODS


def is_reshape(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether it only arranges units anew."""
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.Flatten)
    return node.op in ("call_function", "call_method") and node.target in RESHAPES
