"""A gated feed-forward layer as a module of buffers, and the ways to run it.

Shapes in names: T tokens, D features, N hidden units, G blocks of units, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.gating.gate import close_units
from dynamicgate.inference.cpu.candidates import GateInTorch, RouterInTorch
from dynamicgate.inference.cpu.lower import gate_net
from dynamicgate.inference.gpu.cuda_graph import Recorded
from dynamicgate.inference.gpu.find import Pair
from dynamicgate.ops import GateNet
from dynamicgate.ops.ffn import FFNWeights, decode_ffn, fused_gate_activation, gated_ffn
from dynamicgate.ops.ffn.decode import MOST_TOKENS
from dynamicgate.ops.ffn.tune import LEAST_BLOCK

COMPILED = ", compiled"
FUSED = "dense, fused"
FULL_ROWS = 64


class FeedForward(nn.Module):
    """One `Pair`, by the way that was fastest for as many tokens as there are."""

    def __init__(self, pair: Pair) -> None:
        """On the weights of `pair`; a static gate is sliced away. Runs densely until `use_` says otherwise."""
        super().__init__()
        gate = pair.gate
        self.activation, self.block = pair.activation, gate.config.block
        self.decide: GateInTorch | RouterInTorch | None = None
        tensors = {
            f"{name}_{part}": getattr(linear, part, None)
            for name, linear in (("up", pair.up), ("value", pair.value), ("down", pair.down))
            for part in ("weight", "bias")
        }
        tensors = {name: None if tensor is None else tensor.detach() for name, tensor in tensors.items()}
        if gate.config.kind == "static":
            tensors = _sliced(tensors, gate.per_unit(gate(pair.up.weight[:1]).scale[0]).detach())
        else:
            net = gate_net(gate)
            if len(net.weights) == 1:
                tensors, net = _joined(tensors, net)
            self.decide, self.blocks = GateInTorch(net), net.blocks
            if gate.config.kind == "router":
                self.decide = RouterInTorch(self.decide, net.top_k, float(gate.tau))
        for name in (
            "up_weight",
            "up_bias",
            "value_weight",
            "value_bias",
            "down_weight",
            "down_bias",
            "both",
            "both_bias",
        ):
            self.register_buffer(name, tensors.get(name))
        self.use_([(None, "dense")], {})

    def use_(self, ways: Sequence[tuple[int | None, str]], recorded: Mapping[int, Recorded]) -> None:
        """`ways`: up to so many tokens this one, the last for all others. `recorded`: for exactly so many tokens."""
        self.ways = list(ways)
        self.recorded = dict(recorded)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for `x` [..., features]."""
        weight: Tensor = self.up_weight  # type: ignore[assignment]
        if x.dtype is not weight.dtype or x.device != weight.device or x.shape[-1:] != weight.shape[1:]:
            raise ValueError(
                f"expected {weight.dtype} on {weight.device} with {weight.shape[1]} features in the last dimension, "
                f"received {x.dtype} on {x.device} of shape {tuple(x.shape)}"
            )
        x_TD = x.reshape(-1, weight.shape[1])
        with torch.no_grad():  # what was compiled without gradients would be compiled once more with them
            recorded = self.recorded.get(len(x_TD))
            if recorded is not None and recorded.can_run():
                y_TO = recorded(x_TD)
            else:
                y_TO = way(self.way_for(len(x_TD)))(self, x_TD)
        return y_TO.reshape(*x.shape[:-1], y_TO.shape[-1])

    def way_for(self, tokens: int) -> str:
        """The name of what runs so many tokens, if it was not recorded."""
        return next(name for most, name in self.ways if most is None or tokens <= most)

    def candidates(self, tokens: int) -> list[str]:
        """The ways that are worth timing for so many tokens."""
        found = ["dense", f"dense{COMPILED}"]
        if self.both is not None and isinstance(self.decide, GateInTorch) and not self.decide.keep:
            found += [FUSED]
        if self.decide is not None and self.block >= LEAST_BLOCK:
            found += ["gated"]
        if isinstance(self.decide, GateInTorch) and tokens <= MOST_TOKENS:
            found += ["decode"]
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> FeedForward:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.recorded = {}  # they know where the weights were
        return self

    def extra_repr(self) -> str:
        """Shown by print."""
        return ", ".join(f"{name} up to {most}" if most else name for most, name in self.ways)


Tensors = dict[str, Tensor | None]
Way = Callable[[Any, Tensor], Tensor]


def _sliced(tensors: Tensors, factor_N: Tensor) -> Tensors:
    """Without the units that a static gate closes; what it multiplies the others by goes into the weights behind."""
    kept_N = factor_N != 0
    kept_N[0] |= not bool(kept_N.any())  # a layer must have a unit
    found = {name: t if t is None or name[:4] == "down" else t[kept_N] for name, t in tensors.items()}
    down_ON = tensors["down_weight"]
    assert down_ON is not None
    return found | {"down_weight": (down_ON * factor_N.to(down_ON.dtype))[:, kept_N].contiguous()}


def _joined(tensors: Tensors, net: GateNet) -> tuple[Tensors, GateNet]:
    """A linear gate below the projection up, in one memory: where everything is computed, it is in one product. Rows of
    zeros fill it up: a product of 4,100 columns takes much longer than one of 4,160."""
    up_ND, up_bias_N = tensors["up_weight"], tensors["up_bias"]
    assert up_ND is not None
    N, G = len(up_ND), net.blocks
    empty = -(N + G) % FULL_ROWS
    both = torch.cat((up_ND, net.weights[0], up_ND.new_zeros(empty, up_ND.shape[1])))
    biases = ((up_bias_N, N), (net.biases[0], G), (None, empty))
    bias = torch.cat([both.new_zeros(count) if b is None else b for b, count in biases])
    found = tensors | {"both": both, "both_bias": bias, "up_weight": both[:N]}
    return found, replace(net, weights=(both[N : N + G],), biases=(bias[N : N + G],))


def ungated(layer: Any, x_TD: Tensor) -> Tensor:
    """The layer without its gate: it computes something else, and is what one would run otherwise."""
    return F.linear(_hidden(layer, x_TD), layer.down_weight, layer.down_bias)


def dense(layer: Any, x_TD: Tensor) -> Tensor:
    """Everything, closed units multiplied by zero."""
    if layer.decide is None:
        return ungated(layer, x_TD)
    if layer.both is None:
        h_TN, factor_TG = _hidden(layer, x_TD), layer.decide(x_TD)
    else:
        N = len(layer.up_weight)
        both_TM = F.linear(x_TD, layer.both, layer.both_bias)
        h_TN, factor_TG = (
            ACTIVATIONS[layer.activation].function(both_TM[:, :N]),
            layer.decide.factors(both_TM[:, N : N + layer.blocks].float()),
        )
        h_TN = h_TN if layer.value_weight is None else h_TN * F.linear(x_TD, layer.value_weight, layer.value_bias)
    return F.linear(close_units(h_TN, factor_TG, layer.block), layer.down_weight, layer.down_bias)


def fused(layer: Any, x_TD: Tensor) -> Tensor:
    """Everything, by the products of eager torch, which add their biases, and one pass of ours between them."""
    value_TN = None if layer.value_weight is None else F.linear(x_TD, layer.value_weight, layer.value_bias)
    h_TN = fused_gate_activation(
        F.linear(x_TD, layer.both, layer.both_bias), len(layer.up_weight), block=layer.block, cut=layer.decide.cut,
        tau=layer.decide.tau, soft_width=layer.decide.soft_width, activation=layer.activation, value_TN=value_TN,
    )  # fmt: skip
    return F.linear(h_TN, layer.down_weight, layer.down_bias)


def gated(layer: Any, x_TD: Tensor) -> Tensor:
    """Open blocks alone; the gate decides in torch. In order: a plan gives the same bits every time."""
    options = {"block": layer.block, "activation": layer.activation}
    return gated_ffn(x_TD, _weights(layer), layer.decide(x_TD), deterministic=True, **options)


def decode(layer: Any, x_TD: Tensor) -> Tensor:
    """Open blocks alone, for a few tokens; the gate is part of it."""
    return decode_ffn(x_TD, _net(layer.decide), _weights(layer), block=layer.block, activation=layer.activation)


WAYS: dict[str, Way] = {"ungated": ungated, "dense": dense, FUSED: fused, "gated": gated, "decode": decode}


@cache
def way(name: str) -> Way:
    """The function of this name, compiled if it says so."""
    plain = WAYS[name.removesuffix(COMPILED)]
    return torch.compile(plain) if name.endswith(COMPILED) else plain


def _hidden(layer: Any, x_TD: Tensor) -> Tensor:
    h_TN = ACTIVATIONS[layer.activation].function(F.linear(x_TD, layer.up_weight, layer.up_bias))
    return h_TN if layer.value_weight is None else h_TN * F.linear(x_TD, layer.value_weight, layer.value_bias)


def _weights(layer: Any) -> FFNWeights:
    biases = (layer.up_bias, layer.down_bias, layer.value_bias)
    return FFNWeights(layer.up_weight, layer.down_weight, layer.value_weight, *biases)


def _net(decide: Any) -> GateNet:
    numbers = range(decide.stages)
    weights, biases = (tuple(getattr(decide, f"{word}_{i}") for i in numbers) for word in ("weight", "bias"))
    return GateNet(weights, biases, decide.hidden, decide.cut, decide.keep, decide.tau, decide.soft_width)
