"""The reference implementation: a chain as masked dense layers in plain torch, in the dtype of `x`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS
from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.gate_net import decide, logits


def reference_chain(x: Tensor, layers: Sequence[Layer], factor_BG: Tensor | None = None) -> Tensor:
    """Run the chain: compute everything, then multiply what is closed by zero."""
    h = x
    for layer in layers:
        factor = None
        if layer.gate is not None:
            factor = decide(logits(h, layer.gate), layer.gate)
        elif layer.block:
            if factor_BG is None:
                raise ValueError("a layer with a block and no gate needs factor_BG, received None")
            factor = factor_BG.to(h.dtype)
        bias = None if layer.bias is None else layer.bias.to(h.dtype)
        units = ACTIVATIONS[layer.activation].function(F.linear(_kept(h, layer.above), layer.weight.to(h.dtype), bias))
        bias = None if layer.value_bias is None else layer.value_bias.to(x.dtype)
        units = _kept(units, layer.factors_above)
        if layer.value_weight is not None:
            units = units * F.linear(_kept(h, layer.value_above), layer.value_weight.to(x.dtype), bias)
        h = units
        if factor is not None:
            h = h * factor.repeat_interleave(layer.block, dim=-1)[..., : h.shape[-1]]
    return h


def _kept(h_BD: Tensor, above_D: Tensor | None) -> Tensor:
    """What is above its threshold, and zeros."""
    return h_BD if above_D is None else torch.where(h_BD.abs() <= above_D.to(h_BD.dtype), 0.0, h_BD)
