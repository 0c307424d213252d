"""MACs that are left where exact zeros among the inputs of a layer are skipped as well."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynamicgate.accounting.linear import LayerMacs
from dynamicgate.gating.gate import Gate
from dynamicgate.linears import out_features
from dynamicgate.masks import connections, present


def zero_skipping(layer: LayerMacs, g: dict[str, Tensor], nonzero_BI: Tensor) -> Tensor:
    """MACs of a layer over the batch if exact zeros among its open inputs are skipped as well."""
    live_BI = nonzero_BI.float()
    open_BI, open_BO = layer.read.per_unit(g), layer.written.per_unit(g)
    if open_BI is not None:
        live_BI = live_BI * open_BI
    mask = connections(layer.linear)
    if mask is None:
        open_B = torch.as_tensor(layer.written.open_units(g), dtype=torch.float64, device=live_BI.device)
        return (live_BI.sum(-1, dtype=torch.float64) * open_B).sum()
    if open_BO is None:
        return (live_BI * _fan_out(layer.linear)).sum(dtype=torch.float64)
    return ((live_BI @ mask.float().T) * open_BO).sum(dtype=torch.float64)


def gate_zero_skipping(gate: Gate, nonzero_BD: Tensor) -> Tensor:
    """MACs of a gate network over the batch if its first layer skips what is zero; the later layers run in full."""
    layers = [m for m in gate.net.modules() if isinstance(m, nn.Linear)]
    if not layers:
        return torch.zeros((), dtype=torch.float64)
    rest = sum(present(layer) for layer in layers[1:]) * nonzero_BD.shape[:-1].numel()
    return (nonzero_BD * _fan_out(layers[0])).sum(dtype=torch.float64) + rest


def _fan_out(linear: nn.Module) -> Tensor | int:
    """How many connections leave each input."""
    mask = connections(linear)
    return out_features(linear) if mask is None else mask.sum(0)
