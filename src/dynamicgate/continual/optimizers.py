"""The optimizer of `follow`: by name, or your own, and its learning rate at every step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import nn

from dynamicgate.training.optimizer import MakeOptimizer, adamw, own_optimizer
from dynamicgate.training.options import FitOptions

OptimizerName = Literal["adamw", "adam", "sgd", "rmsprop"]
PLAIN: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "rmsprop": torch.optim.RMSprop,
}
LR, WEIGHT_DECAY = 1e-3, 0.0
NewOptimizer: TypeAlias = Callable[[], torch.optim.Optimizer]


def optimizer_maker(
    model: nn.Module,
    asked: OptimizerName | MakeOptimizer,
    device: torch.device,
    *,
    lr: float | None,
    weight_decay: float | None,
    gate_lr_scale: float,
) -> NewOptimizer:
    """What makes a new optimizer of `model`, as often as tasks need one. Refuses what this optimizer would ignore."""
    if not gate_lr_scale > 0.0:
        raise ValueError(f"gate_lr_scale must be positive, received {gate_lr_scale}")
    if callable(asked):
        if lr is not None or weight_decay is not None:
            raise ValueError(
                "lr and weight_decay are those of a named optimizer: give your own its own, as in "
                "optimizer=functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)"
            )
        return partial(own_optimizer, asked, model, FitOptions(gate_lr_scale=gate_lr_scale))
    if asked != "adamw" and asked not in PLAIN:
        raise ValueError(f"optimizer must be adamw, {', '.join(PLAIN)}, or make one of parameters, received {asked!r}")
    lr, decay = LR if lr is None else lr, WEIGHT_DECAY if weight_decay is None else weight_decay
    if asked == "adamw":
        return partial(adamw, model, FitOptions(lr=lr, gate_lr_scale=gate_lr_scale, weight_decay=decay), device)
    if gate_lr_scale != 1.0:
        raise ValueError(
            f"{asked} has one learning rate for all parameters: for gate_lr_scale={gate_lr_scale} use adamw, or "
            f"optimizer=functools.partial(torch.optim.{PLAIN[asked].__name__}, lr=...)"
        )
    return partial(_plain, model, PLAIN[asked], lr, decay)


def _plain(
    model: nn.Module, kind: Callable[..., torch.optim.Optimizer], lr: float, decay: float
) -> torch.optim.Optimizer:
    return kind([{"params": list(model.parameters()), "lr_scale": 1.0, "weight_decay": decay}], lr=lr)


def set_rate(optimizer: torch.optim.Optimizer, lr: float, factor: float) -> None:
    """Of every group, where `factor` says how much of the peak is left; `lr` is the peak of a named optimizer."""
    for group in optimizer.param_groups:
        group["lr"] = group["lr_scale"] * group.get("peak_lr", lr) * factor
