"""Gates and routers for inference: modules of buffers that decide exactly as a trained `Gate` does.

Shapes in names: B rows (any leading dimensions), D features, G blocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dynamicgate import ops
from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.gate import Gate, count_of
from dynamicgate.gating.routing import open_shares, route, top_k_mask
from dynamicgate.modules import keep_float32_
from dynamicgate.ops.gate_net import HIDDEN, NEAREST, between_maps

_PARTS = ("weight", "bias")


class GateInTorch(nn.Module):
    """A gate network: from features to the factor of each block, which is 0 where the block is closed."""

    cut: Tensor

    def __init__(self, net: ops.GateNet) -> None:
        """Makes the same decisions as the kernels make from `net`."""
        super().__init__()
        self.hidden, self.top_k, self.threshold = net.hidden, net.top_k, float(net.cut)
        self.tau, self.soft_width, self.unbounded = net.tau, net.soft_width, net.unbounded
        self.depth = len(net.weights)
        for i, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
            self.register_buffer(f"weight_{i}", weight)
            self.register_buffer(f"bias_{i}", bias)
        # As a tensor: torch.compile would compile every layer anew for a number of its own.
        cut = torch.tensor(self.threshold, dtype=torch.float32, device=net.weights[0].device)
        self.register_buffer("cut", cut, persistent=False)

    def _apply(self, fn: Any, recurse: bool = True) -> GateInTorch:
        before = {"cut": self.cut}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_float32_(self, before)  # as logits are
        return self

    @property
    def net(self) -> ops.GateNet:
        """What the kernels take, on the same tensors."""
        weights, biases = (tuple(getattr(self, f"{part}_{i}") for i in range(self.depth)) for part in _PARTS)
        return ops.GateNet(
            weights,
            biases,
            hidden=self.hidden,
            cut=self.threshold,
            top_k=self.top_k,
            tau=self.tau,
            soft_width=self.soft_width,
            unbounded=self.unbounded,
        )

    def logits(self, x_BD: Tensor) -> Tensor:
        """One logit for each block, in float32: a threshold in lower precision would move gates."""
        z = F.linear(x_BD, self.weight_0, self.bias_0)  # type: ignore[arg-type]
        if self.depth == 2:
            z = F.linear(between_maps(z, self.hidden), self.weight_1, self.bias_1)  # type: ignore[arg-type]
        return z.float()

    def forward(self, x_BD: Tensor) -> Tensor:
        """The factor of each block."""
        return self.factors(self.logits(x_BD))

    def factors(self, z_BG: Tensor) -> Tensor:
        """The factors that follow from logits."""
        factor_BG = torch.where(z_BG.isnan(), z_BG, (z_BG > self.cut).to(z_BG.dtype))
        if self.top_k:
            factor_BG = torch.maximum(factor_BG, top_k_mask(z_BG, self.top_k))
        if self.soft_width is not None:
            return factor_BG * ((z_BG - self.cut) / self.soft_width).clamp(0.0, None if self.unbounded else 1.0)
        return factor_BG if self.tau is None else factor_BG * torch.sigmoid(z_BG / self.tau)

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor, for JSON; the threshold is text, because it may be infinite."""
        return {
            "depth": self.depth,
            "hidden": self.hidden,
            "threshold": str(self.threshold),
            "top_k": self.top_k,
            "tau": self.tau,
            "soft_width": self.soft_width,
            "unbounded": self.unbounded,
        }

    @staticmethod
    def from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> GateInTorch:
        """The inverse of `describe`, with the buffers."""
        tau, soft_width, top_k = (described[key] for key in ("tau", "soft_width", "top_k"))
        unbounded = described.get("unbounded", False)  # absent in files from before there were such gates
        scales = [number for number in (tau, soft_width) if number is not None]
        if described["depth"] not in (1, 2) or described["hidden"] not in HIDDEN or type(top_k) is not int:
            raise ValueError(f"a gate has one or two maps and a known activation, received {described!r:.80}")
        if top_k < 0 or not all(isinstance(number, float) and 0.0 < number < math.inf for number in scales):
            raise ValueError(f"top_k, tau and soft_width of a gate are positive numbers, received {described!r:.80}")
        if type(unbounded) is not bool or (unbounded and soft_width is None):
            raise ValueError(f"unbounded says whether soft_width has no limit, received {described!r:.200}")
        numbers = range(described["depth"])
        net = ops.GateNet(
            tuple(tensors[f"weight_{i}"] for i in numbers),
            tuple(tensors.get(f"bias_{i}") for i in numbers),
            hidden=described["hidden"],
            cut=float(described["threshold"]),
            top_k=described["top_k"],
            tau=described["tau"],
            soft_width=described["soft_width"],
            unbounded=unbounded,
        )
        return GateInTorch(net)


class RouterInTorch(nn.Module):
    """Softmax over experts: the k most probable, weighted by p (from k = 2 on by p over the sum of the chosen). Without
    k those that `gate` opens, weighted by their softmax."""

    def __init__(self, gate: GateInTorch, k: int | None, tau: float) -> None:
        """Routes by the logits of `gate`."""
        super().__init__()
        self.gate, self.k, self.tau = gate, k, tau

    @property
    def net(self) -> ops.GateNet | None:
        """The same for a kernel; None where that cannot be: a single expert is weighted by its probability among all,
        and no kernel has a soft width beside shares."""
        if self.k == 1 or self.gate.soft_width is not None:
            return None
        return replace(self.gate.net, tau=self.tau, competes=True)

    def forward(self, x_BD: Tensor) -> Tensor:
        """The factor of each expert."""
        return self.factors(self.gate.logits(x_BD))

    def factors(self, z_BG: Tensor) -> Tensor:
        """The factors that follow from logits."""
        if self.k is None:
            return open_shares(z_BG / self.tau, self.gate.factors(z_BG))
        return route(z_BG / self.tau, self.k)[2]

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {"k": self.k, "tau": self.tau, "gate": self.gate.describe()}

    @staticmethod
    def from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> RouterInTorch:
        """The inverse of `describe`, with the buffers."""
        gate = GateInTorch.from_description(described["gate"], without_prefix(tensors, "gate"))
        k, tau = described["k"], described["tau"]
        if (k is not None and (type(k) is not int or k < 1)) or not (isinstance(tau, float) and 0.0 < tau < math.inf):
            raise ValueError(f"a router opens k experts at a temperature, received {described!r:.80}")
        return RouterInTorch(gate, described["k"], described["tau"])


@torch.no_grad()
def gate_net(gate: Gate) -> ops.GateNet:
    """The gate network as the kernels take it; a sigmoid above theta is a logit above tau * logit(theta)."""
    if isinstance(gate.net, ContextNet):
        return _nearest_net(gate.net)
    config, tau = gate.config, float(gate.tau)
    linears = [m for m in gate.net.modules() if isinstance(m, nn.Linear)]
    threshold, top_k = float(gate.logit_threshold), count_of(config.always_open, gate.blocks)
    if config.evaluate == "soft":
        threshold, top_k = -math.inf, 0
    elif config.top_k is not None:
        threshold, top_k = math.inf, count_of(config.top_k, gate.blocks)
    scaled, relu = config.evaluate == "soft" or config.scale is True, config.scale == "relu"
    return ops.GateNet(
        tuple(m.weight.detach() for m in linears),
        tuple(None if m.bias is None else m.bias.detach() for m in linears),
        hidden="relu" if config.net == "two-layer" else "identity",
        cut=threshold,
        top_k=top_k,
        tau=tau if scaled else None,
        soft_width=tau if relu else config.soft_width * tau or None,
        unbounded=relu,
    )


def _nearest_net(net: ContextNet) -> ops.GateNet:
    """A context gate as two maps: how near each known prototype is, and the blocks that the nearest one opens."""
    prototypes_CD = net.prototypes.detach().float()[net.known]
    opens_GC = net.opens[net.known].T.float().contiguous()
    return ops.GateNet((prototypes_CD, opens_GC), (-0.5 * prototypes_CD.square().sum(1), None), hidden=NEAREST, cut=0.5)


def same_for_all(gate: Gate) -> bool:
    """Whether a gate opens the same for every input: static gates, and context gates whose context is told, that know
    one context, or none."""
    net = gate.net
    if isinstance(net, ContextNet):
        return net.named is not None or int(net.known.sum()) < 2
    return gate.config.kind == "static"


@torch.no_grad()
def factor_for_all(gate: Gate) -> Tensor | None:
    """What each block is multiplied by where that is the same for every input; None for gates that look at it."""
    if not same_for_all(gate):
        return None
    net = gate.net
    if isinstance(net, ContextNet):
        return net(net.prototypes.new_zeros(1, net.prototypes.shape[1]))[0]
    return gate(torch.zeros(1, 1)).scale[0]


def context_words(gate: Gate) -> str | None:
    """How a context gate decides in a plan; None for other gates."""
    net = gate.net
    if not isinstance(net, ContextNet):
        return None
    known = int(net.known.sum())
    if net.named is not None:
        return f"its context is told ({net.named}), so that only the blocks of that one are in the plan"
    if known < 2:
        return (
            "it knows one context, whose blocks are open for every row" if known else "it knows no context: all is open"
        )
    return f"the nearest of {known} prototypes names the context of each row, and only its blocks run"


def router_k(gate: Gate) -> int | None:
    """How many experts a router opens; None where the threshold decides."""
    return gate_net(gate).top_k if gate.config.kind == "router" else None


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose names start with `prefix.`, under their names without it."""
    return {name[len(prefix) + 1 :]: tensor for name, tensor in tensors.items() if name.startswith(f"{prefix}.")}
