"""The optimizer of `fit`: which parameters decay, how fast gates learn, and the learning rate of each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn

from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import stages_of
from dynamicgate.training.options import FitOptions

MakeOptimizer: TypeAlias = Callable[[Any], torch.optim.Optimizer]
"""Makes an optimizer of groups of parameters, as the classes of `torch.optim` and `functools.partial` of them do."""


def adamw(model: nn.Module, options: FitOptions, device: torch.device) -> torch.optim.Optimizer:
    """AdamW with weight decay on weight matrices, those of gate networks included: without it they learn the training
    rows by heart. Not on biases: decay would move the gates away from the budget. `lr_scale` is the learning rate of a
    group relative to that of the run; biases of gates keep it, so that slow gate networks can still learn which units
    are good for all inputs."""
    groups = [{"weight_decay": options.weight_decay, **group} for group in _groups(model, options)]
    return torch.optim.AdamW(groups, lr=options.lr, fused=device.type in ("cpu", "cuda"))


def own_optimizer(make: MakeOptimizer, model: nn.Module, options: FitOptions) -> torch.optim.Optimizer:
    """The optimizer that `make` makes. It gets the same groups, so that biases do not decay; all else is its own, and
    its learning rate is the peak of the schedule."""
    optimizer = make([group for group in _groups(model, options) if group["params"]])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            "optimizer must make an optimizer of parameters, as torch.optim.SGD or functools.partial(torch.optim.SGD, "
            f"lr=0.1, momentum=0.9) do; received {optimizer!r:.60}"
        )
    known = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if missing := [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in known]:
        raise ValueError(
            f"the optimizer does not train {', '.join(missing[:5])}: freeze them with requires_grad_(False)"
        )
    for group in optimizer.param_groups:
        group.setdefault("lr_scale", 1.0)
        group["peak_lr"] = float(group["lr"])
    return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, options: FitOptions, step: int, total: int) -> None:
    """Of every group, for this step."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr_scale"] * options.learning_rate(step, total, group.get("peak_lr"))


def optimizer_settings(optimizer: torch.optim.Optimizer) -> list[Any]:
    """What a run that continues this one must share: the class, and the options of each group before the first step."""
    kind = type(optimizer)
    groups = [{k: v for k, v in group.items() if k not in ("params", "lr")} for group in optimizer.param_groups]
    values = [{k: list(v) if isinstance(v, tuple) else v for k, v in group.items()} for group in groups]
    return [f"{kind.__module__}.{kind.__qualname__}", values]


def _groups(model: nn.Module, options: FitOptions) -> list[dict[str, Any]]:
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
    return [
        {"params": decays, "lr_scale": 1.0},
        {"params": rest, "weight_decay": 0.0, "lr_scale": 1.0},
        {"params": gate_decays, "lr_scale": options.gate_lr_scale},
        {"params": gates, "weight_decay": 0.0, "lr_scale": 1.0},
    ]
