"""`FitOptions`, the optimizer, class weights, and checks of labels and model outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dynamicgate.data import Arrays
from dynamicgate.gating.recording import named_gates
from dynamicgate.modules import evaluating


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The arguments of `fit` that determine the result; `fit` describes them."""

    epochs: int = 10
    batch: int = 128
    lr: float = 2e-3
    gate_lr_scale: float = 1.0
    weight_decay: float = 0.01
    warmup: float = 0.05
    accumulate: int = 1
    clip: float | None = None
    bf16: bool = False
    label_smoothing: float = 0.0
    patience: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "accumulate"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, received {getattr(self, name)}")
        if not self.lr > 0:
            raise ValueError(f"the learning rate must be positive, received {self.lr}")
        if not self.gate_lr_scale > 0:
            raise ValueError(f"gate_lr_scale is relative to lr and must be positive, received {self.gate_lr_scale}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip is the largest gradient norm and must be positive, received {self.clip}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"patience is a number of epochs, 1 or more, received {self.patience}")

    def learning_rate(self, step: int, total: int) -> float:
        """Linear warm-up, then a cosine to zero."""
        rise = min(1.0, (step + 1) / max(1.0, self.warmup * total))
        return self.lr * rise * 0.5 * (1.0 + math.cos(math.pi * step / total))


def adamw(model: nn.Module, options: FitOptions, device: torch.device) -> torch.optim.Optimizer:
    """AdamW with weight decay on weight matrices only: decay of gate parameters would move the gates away from the
    budget. `lr_scale` is the learning rate of a group relative to that of the run."""
    decays: list[nn.Parameter] = []
    rest: list[nn.Parameter] = []
    gates: list[nn.Parameter] = []
    of_gates = {id(parameter) for gate in named_gates(model).values() for parameter in gate.parameters()}
    for parameter in model.parameters():
        if parameter.requires_grad:
            (gates if id(parameter) in of_gates else decays if parameter.ndim >= 2 else rest).append(parameter)
    groups = [
        {"params": decays, "weight_decay": options.weight_decay, "lr_scale": 1.0},
        {"params": rest, "weight_decay": 0.0, "lr_scale": 1.0},
        {"params": gates, "weight_decay": 0.0, "lr_scale": options.gate_lr_scale},
    ]
    return torch.optim.AdamW(groups, lr=options.lr, fused=device.type in ("cpu", "cuda"))


def weights_per_class(class_weights: Tensor | str | None, train: Arrays, classes: int) -> Tensor | None:
    """ "balanced" is inverse class frequency with mean 1 over the rows."""
    if class_weights is None:
        return None
    if isinstance(class_weights, Tensor):
        if class_weights.shape != (classes,) or not bool((class_weights >= 0).all() & class_weights.isfinite().all()):
            raise ValueError(
                f"class_weights must be {classes} finite numbers, none negative, one for each output of the model; "
                f"received {class_weights.tolist()}"
            )
        return class_weights.float()
    if class_weights != "balanced":
        raise ValueError(f"class_weights is a tensor with one weight a class or 'balanced', received {class_weights!r}")
    counts = torch.bincount(train.y, minlength=classes).float()
    return len(train.y) / (counts.count_nonzero() * counts.clamp(min=1))


@torch.no_grad()
def scored_classes(model: nn.Module, example: Tensor) -> int:
    """How many classes the model scores; a readable error if it does not accept the data."""
    try:
        with evaluating(model):
            scores = model(example)
    except RuntimeError as error:
        raise ValueError(f"the model cannot read rows of shape {list(example.shape[1:])}: {error}") from error
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != len(example):
        found = list(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(
            f"fit trains classifiers: expected scores of shape [{len(example)}, classes] for {len(example)} rows, the "
            f"model returned {found}"
        )
    return scores.shape[1]


def check_labels(data: Arrays, classes: int, what: str) -> None:
    """The model must have an output for every label."""
    least, most = int(data.y.min()), int(data.y.max())
    if least < 0 or most >= classes:
        raise ValueError(
            f"{what}: labels must be 0..{classes - 1} for a model with {classes} outputs, found {least}..{most}"
        )
