"""What an optimizer remembers of each weight, and how that begins anew for a connection that begins anew."""

from __future__ import annotations

import torch
from torch import Tensor, nn

SECOND_MOMENTS = ("exp_avg_sq", "square_avg")


def trains(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> bool:
    """Whether `optimizer` moves `parameter`."""
    return any(parameter is p for group in optimizer.param_groups for p in group["params"])


def clear_(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, index: Tensor) -> None:
    """Forget all about the entries at `index` (flat): momentum, both moments of Adam, whatever has the same shape."""
    for value in optimizer.state.get(parameter, {}).values():
        if isinstance(value, Tensor) and value.shape == parameter.shape:
            value.view(-1).index_fill_(0, index, 0.0)


def start_gently_(optimizer: torch.optim.Optimizer, parameter: nn.Parameter, index: Tensor, count: int) -> None:
    """Give the entries in `index`, which are about to take their first step, a second moment.

    Adam corrects its moments by one step count for the whole tensor, so that an entry that starts from zero late in a
    run would take steps of up to 6.5 learning rates for some dozens of steps: the loss would jump. With the second
    moment of its first gradient, and no less than `count` connections of this layer have on average, it takes less
    than one, rising as the first moment does.
    """
    state = optimizer.state.get(parameter, {})
    for name in SECOND_MOMENTS:
        if name not in state or parameter.grad is None:
            continue
        moment = state[name]
        first = parameter.grad.flatten()[index].square().to(moment.dtype) * _memory(optimizer, parameter)
        moment.view(-1)[index] = first.clamp(min=float(moment.sum() / max(1, count)))


def _memory(optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> float:
    """The share of a constant that a second moment has reached by now: what Adam's bias correction divides by."""
    group = next(g for g in optimizer.param_groups if any(parameter is p for p in g["params"]))
    if "betas" not in group:
        return 1.0
    return 1.0 - float(group["betas"][1]) ** max(1.0, float(optimizer.state[parameter]["step"]))
