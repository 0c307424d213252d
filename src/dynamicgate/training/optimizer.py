"""The optimizer of `fit`: AdamW with groups for weight matrices, other parameters, and gates."""

from __future__ import annotations

import torch
from torch import nn

from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import stages_of
from dynamicgate.training.options import FitOptions


def adamw(model: nn.Module, options: FitOptions, device: torch.device) -> torch.optim.Optimizer:
    """AdamW with weight decay on weight matrices, those of gate networks included: without it they learn the training
    rows by heart. Not on biases: decay would move the gates away from the budget. `lr_scale` is the learning rate of a
    group relative to that of the run; biases of gates keep it, so that slow gate networks can still learn which units
    are good for all inputs."""
    decays: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    gate_decays: list[nn.Parameter] = []
    gates: list[nn.Parameter] = []
    stages = stages_of(model)
    every_gate = [*named_gates(model).values(), *([] if stages is None else [stages])]
    of_gates = {id(parameter) for gate in every_gate for parameter in gate.parameters()}
    for parameter in model.parameters():
        if parameter.requires_grad:
            decay, other = (gate_decays, gates) if id(parameter) in of_gates else (decays, rest)
            (decay if parameter.ndim >= 2 else other).append(parameter)
    groups = [
        {"params": decays, "weight_decay": options.weight_decay, "lr_scale": 1.0},
        {"params": rest, "weight_decay": 0.0, "lr_scale": 1.0},
        {"params": gate_decays, "weight_decay": options.weight_decay, "lr_scale": options.gate_lr_scale},
        {"params": gates, "weight_decay": 0.0, "lr_scale": 1.0},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, fused=device.type in ("cpu", "cuda"))
