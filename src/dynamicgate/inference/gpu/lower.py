"""Lower a gated feed-forward layer to plain tensors: a static gate is sliced away, a linear gate is joined to up.

Shapes in names: D features, N hidden units, G blocks of units, O outputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dynamicgate.inference.gates import GateInTorch, RouterInTorch, gate_net, router_k
from dynamicgate.inference.gpu.find import GatedFFN
from dynamicgate.ops import GateNet

FULL_ROWS = 64
Tensors = dict[str, Tensor | None]


@dataclass(frozen=True)
class Lowered:
    """A feed-forward layer as tensors, and the gate that decides for each input."""

    tensors: Tensors
    """{up,value,down}_{weight,bias}; for a linear gate also `fused_weight` and `fused_bias`: those of up, then those
    of the gate, which are views of them."""
    gate: GateInTorch | RouterInTorch | None
    """None if the gate was static."""
    activation: str
    block: int
    blocks: int


def lower_ffn(ffn: GatedFFN) -> Lowered:
    """`ffn` as tensors, on the memory of its layers where nothing changes."""
    config = ffn.gate.config
    tensors: Tensors = {
        f"{name}_{part}": getattr(linear, part, None)
        for name, linear in (("up", ffn.up), ("value", ffn.value), ("down", ffn.down))
        for part in ("weight", "bias")
    }
    tensors = {name: None if tensor is None else tensor.detach() for name, tensor in tensors.items()}
    gate: GateInTorch | RouterInTorch | None = None
    if config.kind == "static":
        tensors = _sliced(tensors, ffn.gate.per_unit(ffn.gate(ffn.up.weight[:1]).scale[0]).detach())
    else:
        net = gate_net(ffn.gate)
        if len(net.weights) == 1:
            tensors, net = _joined(tensors, net)
        gate = GateInTorch(net)
        if config.competes:
            gate = RouterInTorch(gate, router_k(ffn.gate), float(ffn.gate.tau))
    return Lowered(tensors, gate, ffn.activation, ffn.gate.block, ffn.gate.blocks)


def _sliced(tensors: Tensors, factor_N: Tensor) -> Tensors:
    """Without the units that a static gate closes; what it multiplies the others by goes into the weights of down."""
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
    weight = torch.cat((up_ND, net.weights[0], up_ND.new_zeros(empty, up_ND.shape[1])))
    biases = ((up_bias_N, N), (net.biases[0], G), (None, empty))
    bias = torch.cat([weight.new_zeros(count) if b is None else b for b, count in biases])
    found = tensors | {"fused_weight": weight, "fused_bias": bias, "up_weight": weight[:N]}
    return found, replace(net, weights=(weight[N : N + G],), biases=(bias[N : N + G],))
