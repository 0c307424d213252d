"""Open-loop penalties on gate usage: the paper's (sec 3.3) and the ones its published code uses instead.

Each is a function of one site's decision; an `OpenLoopBudget` adds them over the sites and multiplies by lambda.
`means` averages over rows and, in a distributed run, over the processes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dynamicgate.distributed import RowMeans
from dynamicgate.gating.gate import Decision, Gate

Penalty = Callable[[Decision, Gate, float, RowMeans], Tensor]


def linear(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """Expected usage: the mean of p (sec 3.3(2))."""
    return means.mean(used.p)


def cost_weighted(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """Expected usage weighted by what each block costs: units x (fan-in + fan-out) (sec 3.3(3)). Within one site every
    unit has the same fans, so that the weights are the block sizes."""
    sizes = gate.block_sizes.to(used.p)
    return means.mean(used.p * (sizes / sizes.mean()))


def hinge(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """Only what exceeds the target rate (published Speech Commands code)."""
    return (means.mean(used.p) - target_rate).relu()


def keep_hinge(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """The square of what is missing to the target rate (published MNIST code): it opens gates."""
    return (target_rate - means.mean(used.p)).relu().square()


def squared_soft(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """Squared distance of mean p from the target rate (published CIFAR-10 and Tiny-ImageNet code)."""
    return (means.mean(used.p) - target_rate).square()


def squared_hard(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """Squared distance of mean g from the target rate, with the gradient of p (published PBMC3k code)."""
    return (means.mean(straight_through_usage(used)) - target_rate).square()


Z_LOSS = 0.1  # of the load balance: weight 1e-2 then gives the published 1e-2 and 1e-3


def balance(used: Decision, gate: Gate, target_rate: float, means: RowMeans) -> Tensor:
    """Load balance and z-loss of a router (published MNIST code, sec 5.5): E * sum over experts of load * importance,
    plus 0.1 * the mean of logsumexp(z)^2. Load is an expert's fraction of the assignments before any is dropped, and
    has no gradient; importance is its mean p. Even routing costs 1, everything to one of E experts costs E."""
    if gate.config.kind != "router":
        raise ValueError(
            "form 'balance' spreads rows over the experts of a router, received a gate of kind "
            f"{gate.config.kind!r} on {gate.site.consumer!r}"
        )
    fraction_G = means.columns(used.routed)
    load_G = fraction_G / fraction_G.sum().clamp(min=1.0)  # the sum is k, or 0 where there was no row at all
    return gate.blocks**2 * means.mean(used.p * load_G) + Z_LOSS * means.mean(used.logits.logsumexp(-1).square())


def load_balance(used: Decision, means: RowMeans) -> Tensor:
    """How unevenly the blocks of a gate are used: blocks times the sum over blocks of their fraction of the open
    decisions, which has no gradient, times their fraction of the probabilities. 1 where all are used alike, more where
    few do all the work."""
    load_G, importance_G = means.columns(used.open), means.columns(used.p)
    load_G, total = load_G / load_G.sum().clamp_min(1e-9), importance_G.sum().clamp_min(1e-9)
    blocks = len(load_G)
    value = blocks * (load_G * importance_G).sum() / total
    slope_G = (blocks * load_G - value) / total  # of the value by the importance of each block, over all processes
    moving = blocks * means.local(used.p * slope_G)
    return _with_gradient_of(moving, value)


PENALTIES: dict[str, Penalty] = {
    "linear": linear,
    "cost": cost_weighted,
    "hinge": hinge,
    "keep-hinge": keep_hinge,
    "squared-soft": squared_soft,
    "squared-hard": squared_hard,
    "balance": balance,
}


def straight_through_usage(used: Decision) -> Tensor:
    """The value of g with the gradient of p."""
    return _with_gradient_of(used.p, used.open)


def pressed_usage(used: Decision, gate: Gate, *, opening: bool) -> Tensor:
    """The value of g with the gradient by which a budget opens or closes a gate: that of p.

    A factor that grows with the logit (scale="relu") is pressed down as such, where it is open. It must not be what
    opens gates: it would grow without end and open nothing.
    """
    if gate.config.scale != "relu" or opening:
        return straight_through_usage(used)
    above = torch.where((used.open > 0) & used.logits.isfinite(), used.logits / gate.tau, 0.0)
    return _with_gradient_of(above, used.open)


def _with_gradient_of(soft: Tensor, value: Tensor) -> Tensor:
    """`value` going forward, the gradient of `soft` going back."""
    return value + (soft - soft.detach())
