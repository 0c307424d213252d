"""What each row of a compiled chain executes, counted as `accounting` counts a model: hard gates, both ends of a layer,
connections that exist, gate networks in full.

Shapes in names: B rows, D features read, N units, G blocks, K stages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.accounting.counted import LayerWork
from dynamicgate.activations import ACTIVATIONS
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.dense_stages import DenseStages
from dynamicgate.inference.cpu.lower import scaled_features
from dynamicgate.inference.cpu.unpacked import unpacked_chain
from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.chain.stages import Staged, score_stages
from dynamicgate.ops.gate_net import NEAREST, GateNet, decide, logits


@torch.no_grad()
def chain_work(chain: Chain, x_BD: Tensor) -> list[LayerWork]:
    """For each layer what every row executes, in float32 and in plain torch."""
    h = x_BD if chain.norm_eps is None else scaled_features(x_BD, chain.norm_eps)
    found = unpacked_chain(chain)
    stage_open_BK, deciding_K = None, []
    if isinstance(found, Staged):
        layers, widths = _whole(found), [[part.weight.shape[0] for part in stage[:-1]] for stage in found.stages]
        cut_K = torch.tensor(found.cut, dtype=torch.float64).to(h.dtype)
        above_BK = score_stages(h, found).score_BK > cut_K
        stage_open_BK = torch.cat([torch.ones_like(above_BK[:, :1]), above_BK.cumprod(1).bool()], dim=1).float()
        deciding_K = [_existing(head.weight) for head in found.heads]  # packed, heads have padding
    else:
        layers = _all_stages(chain) if found is None else found
    work: list[LayerWork] = []
    open_BD = torch.ones_like(h)
    for i, layer in enumerate(layers):
        factor_BG, gate = None, layer.gate
        if gate is not None:
            factor_BG = decide(logits(h, gate), gate)
        elif layer.block and chain.router is not None:
            factor_BG, gate = chain.router(h), chain.router.gate.net
        open_BN = h.new_ones(len(h), layer.weight.shape[0])
        if factor_BG is not None:
            open_BN = _units(factor_BG, layer) != 0
        elif stage_open_BK is not None and i + 1 < len(layers):
            sizes = torch.tensor([of_stage[i] for of_stage in widths])
            open_BN = stage_open_BK.repeat_interleave(sizes, dim=1)
        # What a folded LayerNorm adds as a last feature is no connection of the model.
        read = slice(-1 if i == 0 and chain.norm_eps is not None else None)
        exists_ND = (layer.weight[:, read] != 0).float()
        if layer.value_weight is not None:
            exists_ND = exists_ND + (layer.value_weight[:, read] != 0)
        read_BD, nonzero_BD = open_BD[:, read], (h[:, read] != 0).float()
        nets = () if gate is None else (gate.weights[0][:, read], *gate.weights[1:])
        if gate is not None and gate.hidden == NEAREST:
            nets = (torch.ones_like(nets[0]),)  # a product with every prototype; what the nearest opens is looked up
        deciding_B = torch.zeros(len(h), dtype=torch.float64)
        if stage_open_BK is not None and i + 1 == len(layers) and deciding_K:
            deciding_B = stage_open_BK[:, :-1].double() @ torch.tensor(deciding_K, dtype=torch.float64)
        work.append(
            LayerWork(
                executed_B=_count(read_BD, exists_ND, open_BN.float()),
                zero_skip_B=_count(read_BD * nonzero_BD, exists_ND, open_BN.float()) + _skipping(nets, nonzero_BD),
                gate_B=deciding_B + sum(_existing(weight) for weight in nets),
                open_B=open_BN.double().mean(1),
                present=int(exists_ND.sum(dtype=torch.float64)),
                params=_size(layer, gate) + (sum(deciding_K) if i + 1 == len(layers) else 0),
            )
        )
        units_BN = ACTIVATIONS[layer.activation].function(F.linear(h, layer.weight, layer.bias))
        if layer.value_weight is not None:
            units_BN = units_BN * F.linear(h, layer.value_weight, layer.value_bias)
        h, open_BD = units_BN if factor_BG is None else units_BN * _units(factor_BG, layer), open_BN.float()
    return work


def _whole(staged: Staged) -> list[Layer]:
    """The layers of all stages together: units of stage k read nothing of later ones."""
    found = []
    count = len(staged.stages[0])
    for i in range(count):
        parts = [stage[i] for stage in staged.stages]
        if i + 1 == count:
            found.append(replace(parts[0], weight=torch.cat([part.weight for part in parts], dim=1)))
            continue
        most = max(part.weight.shape[1] for part in parts)
        weight_ND = torch.cat([F.pad(part.weight, (0, most - part.weight.shape[1])) for part in parts])
        bias_N = None if parts[0].bias is None else torch.cat([part.bias for part in parts])  # type: ignore[misc]
        found.append(replace(parts[0], weight=weight_ND, bias=bias_N))
    return found


def _all_stages(chain: Chain) -> list[Layer]:
    """Dense stages compute every unit for every row."""
    held = chain.implementations[0]
    assert isinstance(held, DenseStages)
    return [Layer(*held._linear(f"{{}}_{i}"), activation) for i, activation in enumerate(held.activations)]


def _units(factor_BG: Tensor, layer: Layer) -> Tensor:
    return factor_BG.repeat_interleave(layer.block, dim=-1)[..., : layer.weight.shape[0]]


def _count(read_BD: Tensor, exists_ND: Tensor, open_BN: Tensor) -> Tensor:
    """Connections from a unit that is read to one that is open; float32 counts up to 2**24 of one unit exactly."""
    return (F.linear(read_BD, exists_ND) * open_BN).sum(1, dtype=torch.float64)


def _existing(weight: Tensor) -> int:
    return int((weight != 0).sum())


def _skipping(nets: Sequence[Tensor], nonzero_BD: Tensor) -> Tensor:
    """MACs of a gate network that skips inputs that are zero."""
    if not nets:
        return torch.zeros(len(nonzero_BD), dtype=torch.float64)
    first, *rest = nets
    return F.linear(nonzero_BD, (first != 0).float()).sum(1, dtype=torch.float64) + sum(map(_existing, rest))


def _size(layer: Layer, gate: GateNet | None) -> int:
    nets = () if gate is None else (*gate.weights, *gate.biases)
    held = (layer.weight, layer.bias, layer.value_weight, layer.value_bias, *nets)
    return sum(tensor.numel() for tensor in held if tensor is not None)
