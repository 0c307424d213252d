"""Nodes of an ONNX graph, written one after the other; branches see what was written around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from torch import Tensor


class Graph:
    """A graph that grows. Values are named by strings."""

    def __init__(self, prefix: str, outer: Graph | None = None) -> None:
        """Names start with `prefix`; `outer` is the graph around a branch."""
        self.nodes: list[onnx.NodeProto] = []
        self.prefix = prefix
        self.constants: dict[str, onnx.TensorProto] = {} if outer is None else outer.constants
        self._numbers: Iterator[int] = count() if outer is None else outer._numbers

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The first output of a new node."""
        return self.ops(1, kind, *inputs, **attributes)[0]

    def ops(self, outputs: int, kind: str, *inputs: str, **attributes: Any) -> list[str]:
        """All outputs of a new node."""
        made = [self._name(kind) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, made, name=made[0], **attributes))
        return made

    def constant(self, value: Any, dtype: Any = np.float32) -> str:
        """A constant tensor. Weights are held by the model itself, so that both branches of an `If` share them."""
        array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value, dtype)
        tensor = numpy_helper.from_array(np.ascontiguousarray(array, dtype), "")
        for name, other in self.constants.items():
            if (other.data_type, other.dims, other.raw_data) == (tensor.data_type, tensor.dims, tensor.raw_data):
                return name
        tensor.name = self._name("constant")
        self.constants[tensor.name] = tensor
        return tensor.name

    def integers(self, *values: int) -> str:
        """A constant vector of integers, such as a shape."""
        return self.constant(values, np.int64)

    def choose(self, condition: str, then: Callable[[Graph], str], otherwise: Callable[[Graph], str]) -> str:
        """The value of one of two branches; the other one is not computed."""
        branches = {}
        for key, write in (("then_branch", then), ("else_branch", otherwise)):
            inside = Graph(self.prefix, self)
            result = inside.op("Identity", write(inside))
            value = helper.make_tensor_value_info(result, onnx.TensorProto.FLOAT, None)
            branches[key] = helper.make_graph(inside.nodes, key, [], [value])
        return self.op("If", condition, **branches)

    def _name(self, kind: str) -> str:
        return f"{self.prefix}_{kind.lower()}_{next(self._numbers)}"


def activate(graph: Graph, name: str, h: str) -> str:
    """An activation of `dynamicgate.activations`."""
    match name:
        case "identity":
            return h
        case "relu":
            return graph.op("Relu", h)
        case "gelu" | "gelu_tanh":
            return graph.op("Gelu", h, approximate="tanh" if name == "gelu_tanh" else "none")
        case "silu":
            return graph.op("Mul", h, graph.op("Sigmoid", h))
        case "tanh":
            return graph.op("Tanh", h)
        case "quick_gelu":
            return graph.op("Mul", h, graph.op("Sigmoid", graph.op("Mul", h, graph.constant(1.702))))
        case "relu2":
            positive = graph.op("Relu", h)
            return graph.op("Mul", positive, positive)
    raise ValueError(f"no ONNX form is known for the activation {name!r}")


def linear(graph: Graph, h: str, weight_ND: Tensor, bias_N: Tensor | None) -> str:
    """W h + b for each row, as `nn.Linear` computes it."""
    bias = [] if bias_N is None else [graph.constant(bias_N)]
    return graph.op("Gemm", h, graph.constant(weight_ND), *bias, transB=1)
