"""The truth: a chain as masked dense layers, in the dtype of `x`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.chain.layers import GateNet, Layer


def logits(x_BD: Tensor, gate: GateNet) -> Tensor:
    """z, one for each block."""
    z = x_BD
    for i, (weight, bias) in enumerate(zip(gate.weights, gate.biases, strict=True)):
        z = _linear(z if i == 0 else ACTIVATIONS[gate.hidden].function(z), weight, bias)
    return z


def decide(z_BG: Tensor, gate: GateNet) -> Tensor:
    """The factor of each block: 0 where it is closed."""
    open_BG = z_BG > torch.as_tensor(gate.cut, dtype=z_BG.dtype)
    if gate.keep:
        largest = z_BG.sort(dim=-1, descending=True, stable=True).indices[..., : gate.keep]
        open_BG = open_BG.scatter(-1, largest, True)
    factor_BG = open_BG.to(z_BG.dtype)
    if gate.soft_width is not None:
        return factor_BG * ((z_BG - torch.as_tensor(gate.cut, dtype=z_BG.dtype)) / gate.soft_width).clamp(0.0, 1.0)
    return factor_BG if gate.tau is None else factor_BG * torch.sigmoid(z_BG / gate.tau)


def reference(x: Tensor, layers: Sequence[Layer], factor_BG: Tensor | None = None) -> Tensor:
    """Run the chain: everything is computed, then what is closed is multiplied by zero."""
    h = x
    for layer in layers:
        factor = None
        if layer.gate is not None:
            factor = decide(logits(h, layer.gate), layer.gate)
        elif layer.block:
            if factor_BG is None:
                raise ValueError("a layer with a block and no gate needs factor_BG, received None")
            factor = factor_BG.to(h.dtype)
        h = ACTIVATIONS[layer.activation].function(_linear(h, layer.weight, layer.bias))
        if factor is not None:
            h = h * factor.repeat_interleave(layer.block, dim=-1)[..., : h.shape[-1]]
    return h


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
