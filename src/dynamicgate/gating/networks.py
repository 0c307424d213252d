"""Gate networks: what gives the logits of a gate, and how large it is.

Shapes in names: B rows of the batch (any leading dimensions), D features read, N units, G blocks.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate.gating.config import RANK, GateConfig
from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.sites import Site

SMALLEST = 1e-12  # added to squares: the logarithm of 0 has no gradient


class StaticLogits(nn.Module):
    """A learnable logit per block, the same for every input: learned structural dropout (sec 3.1)."""

    def __init__(self, blocks: int) -> None:
        """One logit for each of `blocks`."""
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(blocks))

    def forward(self, x_BD: Tensor) -> Tensor:
        """The logits, once for each row of `x_BD`."""
        return self.bias.expand(*x_BD.shape[:-1], -1)


class Magnitudes(nn.Module):
    """The logarithm of how large each block of units is, plus a learned bias: a threshold on what is there already,
    which costs no multiplications. The size of a block is the root mean square of its units."""

    def __init__(self, width: int, block: int) -> None:
        """For `width` units, `block` of which open together."""
        super().__init__()
        self.block, self.padding = block, -width % block
        self.bias = nn.Parameter(torch.zeros(math.ceil(width / block)))

    def forward(self, x_BN: Tensor) -> Tensor:
        """The logits, in float32 or wider: in bfloat16 a threshold would move by up to 0.4 %."""
        square_BN = x_BN.to(torch.promote_types(x_BN.dtype, torch.float32)).square()
        if self.block > 1:
            square_BG = F.pad(square_BN, (0, self.padding)).unflatten(-1, (-1, self.block)).sum(-1)
            sizes_G = square_BG.new_full((len(self.bias),), self.block)
            sizes_G[-1] -= self.padding
            square_BN = square_BG / sizes_G
        return 0.5 * (square_BN + SMALLEST).log() + self.bias


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
    return replace(config, net=net, rank=None if net in ("linear", "magnitude") else rank)


def gate_net(config: GateConfig, features: int, blocks: int) -> nn.Module:
    """The untrained network of a gate with this resolved config, open as `config.open` says."""
    if config.kind == "context":
        assert config.contexts is not None
        return ContextNet(features, blocks, config.contexts)
    if config.kind == "static":
        net: nn.Module = StaticLogits(blocks)
        last = net
    elif config.net == "magnitude":
        assert config.block is not None
        net = last = Magnitudes(features, min(config.block, features))
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
