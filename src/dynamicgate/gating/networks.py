"""Gate networks: what gives the logits of a gate, and how large it is.

Shapes in names: B rows of the batch (any leading dimensions), D features read.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from dynamicgate.gating.config import RANK, GateConfig
from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.sites import Site


class StaticLogits(nn.Module):
    """A learnable logit per block, the same for every input: learned structural dropout (sec 3.1)."""

    def __init__(self, blocks: int) -> None:
        """One logit for each of `blocks`."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(blocks))

    def forward(self, x_BD: Tensor) -> Tensor:
        """The logits, once for each row of `x_BD`."""
        return self.bias.expand(*x_BD.shape[:-1], -1)


def block_at(site: Site, config: GateConfig) -> int:
    """The units of a block at this site."""
    block = config.block or site.default_block
    if site.head_dim is not None and block % site.head_dim:
        raise ValueError(
            f"blocks of {block} units cut through the heads of {site.name!r}, which have {site.head_dim} units: "
            f"expected a multiple of them, or None for the {site.heads_per_group} that share keys and values"
        )
    return block


def resolved(config: GateConfig, features: int, blocks: int) -> GateConfig:
    """The config with its defaults filled in for a gate of this size."""
    if config.kind in ("static", "context"):
        return config
    net, rank = config.net, RANK if config.rank is None else config.rank
    if config.kind == "router":
        config = replace(config, top_k=config.top_k or 1)
        net = "linear" if net == "auto" else net
    if net == "auto":
        net = "linear" if features * blocks <= rank * (features + blocks) else "low-rank"
    return replace(config, net=net, rank=None if net == "linear" else rank)


def gate_net(config: GateConfig, features: int, blocks: int) -> nn.Module:
    """The untrained network of a gate with this resolved config, open as `config.open` says."""
    if config.kind == "context":
        assert config.contexts is not None
        return ContextNet(features, blocks, config.contexts)
    if config.kind == "static":
        net: nn.Module = StaticLogits(blocks)
        last = net
    elif config.net == "linear":
        net = last = nn.Linear(features, blocks)
    else:
        assert config.rank is not None
        reduce = nn.Linear(features, config.rank, bias=config.net == "two-layer")
        last = nn.Linear(config.rank, blocks)
        net = nn.Sequential(reduce, *([nn.ReLU()] if config.net == "two-layer" else []), last)
    with torch.no_grad():
        # Open start: at p0 the gate is a little above its threshold for every input, whatever the temperature. A bias
        # that all experts share would not move a softmax, but would cost a router z-loss.
        start = 0.0 if config.kind == "router" else config.tau * math.log(config.open / (1.0 - config.open))
        last.bias.fill_(start)  # type: ignore[operator]
    return net


def count_of(amount: int | float, blocks: int) -> int:
    """A float is a fraction of the blocks, rounded up; an integer is a count."""
    if isinstance(amount, float):
        return math.ceil(amount * blocks - 1e-9)  # 0.07 * 100 is a little more than 7
    return min(amount, blocks)
