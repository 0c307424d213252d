"""Open-loop penalties on gate usage: the paper's (sec 3.3) and the ones its published code uses instead.

Each is a function of one site's decision; a `Budget` adds them over the sites and multiplies by lambda. `mean` averages
over rows and blocks and, in a distributed run, over the processes.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from dynamicgate.gate import Decision, Gate

Mean = Callable[[Tensor], Tensor]
Penalty = Callable[[Decision, Gate, float, Mean], Tensor]


def linear(used: Decision, gate: Gate, keep: float, mean: Mean) -> Tensor:
    """Expected usage: the mean of p (sec 3.3(2))."""
    return mean(used.p_BG)


def cost_weighted(used: Decision, gate: Gate, keep: float, mean: Mean) -> Tensor:
    """Expected usage weighted by what each block costs: units x (fan-in + fan-out) (sec 3.3(3)). Within one site every
    unit has the same fans, so that the weights are the block sizes."""
    sizes = gate.block_sizes.to(used.p_BG)
    return mean(used.p_BG * (sizes / sizes.mean()))


def hinge(used: Decision, gate: Gate, keep: float, mean: Mean) -> Tensor:
    """Only what exceeds the keep target (published Speech Commands code)."""
    return (mean(used.p_BG) - keep).relu()


def keep_hinge(used: Decision, gate: Gate, keep: float, mean: Mean) -> Tensor:
    """The square of what is missing to the keep target (published MNIST code): it opens gates."""
    return (keep - mean(used.p_BG)).relu().square()


def squared_soft(used: Decision, gate: Gate, keep: float, mean: Mean) -> Tensor:
    """Squared distance of mean p from the keep target (published CIFAR-10 and Tiny-ImageNet code)."""
    return (mean(used.p_BG) - keep).square()


def squared_hard(used: Decision, gate: Gate, keep: float, mean: Mean) -> Tensor:
    """Squared distance of mean g from the keep target, with the gradient of p (published PBMC3k code)."""
    return (mean(straight_through_usage(used)) - keep).square()


PENALTIES: dict[str, Penalty] = {
    "linear": linear,
    "cost": cost_weighted,
    "hinge": hinge,
    "keep-hinge": keep_hinge,
    "squared-soft": squared_soft,
    "squared-hard": squared_hard,
}


def straight_through_usage(used: Decision) -> Tensor:
    """The value of g with the gradient of p."""
    return used.g_BG + (used.p_BG - used.p_BG.detach())
