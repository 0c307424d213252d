"""Clear and initialize optimizer state for the entries of a weight whose connections are pruned or grown."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dynamicgate.sparsity.sharded import finite, set_at_, whole

SECOND_MOMENTS = ("exp_avg_sq", "square_avg")


def trains(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> bool:
    """Whether `parameter` is one of the parameters of `optimizer`."""
    return any(parameter is p for group in optimizer.param_groups for p in group["params"])


def will_step(optimizer: torch.optim.Optimizer) -> bool:
    """Whether all gradients are finite: otherwise gradient scaling skips this step."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return all(map(finite, grads))


def clear_(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, index: Tensor) -> None:
    """Set the state of the entries at `index` (flat) to zero: momentum, both moments of Adam, and the like."""
    for value in optimizer.state.get(parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            set_at_(value, index, 0.0)


def init_second_moment_(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, index: Tensor, count: int) -> None:
    """Give the entries at `index`, which are about to take their first step, a second moment.

    Adam's bias correction uses one step count for the whole tensor. An entry that starts from zero late in a run would
    take steps of up to 6.5 learning rates for some dozens of steps, and the loss would jump. Here the second moment
    starts at the square of the first gradient, and no lower than the mean over the `count` connections of the layer.
    The first steps are then smaller than one learning rate and grow as the first moment does.
    """
    state = optimizer.state.get(parameter, {})
    for name in SECOND_MOMENTS:
        if name not in state or parameter.grad is None:
            continue
        moment = state[name]
        first = whole(parameter.grad).flatten()[index].square().to(moment.dtype) * _bias_correction(
            optimizer, parameter
        )
        set_at_(moment, index, first.clamp(min=float(whole(moment.sum()) / max(1, count))))


def _bias_correction(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    """What Adam divides the second moment by at this step; 1 for optimizers without a correction."""
    group = next(g for g in optimizer.param_groups if any(parameter is p for p in g["params"]))
    if "betas" not in group:
        return 1.0
    return 1.0 - float(group["betas"][1]) ** max(1.0, float(optimizer.state[parameter]["step"]))
