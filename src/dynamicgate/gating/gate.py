"""The gate: from an input to logits z, probabilities p and decisions g (sec 3.1, 3.2, 3.4, 3.5, 4.1).

Shapes in names: B rows of the batch (any leading dimensions), D features read, N units gated, G blocks of units.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from dynamicgate.gating.channels import images, pooled, scale_channels
from dynamicgate.gating.config import GateConfig, Policy
from dynamicgate.gating.context import ContextNet
from dynamicgate.gating.networks import StaticLogits, block_at, count_of, gate_net, resolved
from dynamicgate.gating.ownership import put_owners_as_in_
from dynamicgate.gating.pending import OfThread, PendingFactors
from dynamicgate.gating.recomputation import PastDecisions, recomputing
from dynamicgate.gating.routing import drop_over_capacity, expert_capacity, expert_weights, open_shares, top_k_mask
from dynamicgate.gating.sites import Site
from dynamicgate.masks import present
from dynamicgate.modules import keep_float32_

__all__ = ["Decision", "Gate", "GateConfig", "Policy", "StaticLogits", "count_of", "scale_units"]


class Decision(NamedTuple):
    """What a gate decided: one row for each row it read, one column for each block."""

    p: Tensor
    """Probabilities of being open, differentiable."""
    open: Tensor
    """Hard decisions as deployed, 0 or 1."""
    scale: Tensor
    """The factor that multiplies the units."""
    logits: Tensor
    """What the gate network gave."""
    routed: Tensor
    """What a router asked for: `open` is the part of it that found capacity. Equal to `open` for other gates."""


Watcher = Callable[["Gate", Decision], None]


class Gate(nn.Module):
    """A gate on one site. It is a child of the site's consumer and acts through two forward pre-hooks:
    `decide_before` the source runs and `scale_before` the consumer runs; on factors through one forward hook,
    `cut_after` the activation has run (`dynamicgate.gating.attach` attaches them)."""

    tau: Tensor
    theta: Tensor

    def __init__(self, site: Site, config: GateConfig, features: int) -> None:
        """A gate for `site` whose network, if it has one, reads `features` values."""
        super().__init__()
        self.site = site
        asked = block_at(site, config)
        self.block = min(asked, site.width)  # never more memory than there are units
        self.blocks = math.ceil(site.width / self.block)
        self.config = resolved(replace(config, block=asked), features, self.blocks)
        self.net = gate_net(self.config, features, self.blocks)
        # Buffers, not attributes: they must travel with the checkpoint, and changing them must not recompile the model.
        self.register_buffer("tau", torch.tensor(float(config.tau), dtype=torch.float32))
        self.register_buffer("theta", torch.tensor(float(config.theta), dtype=torch.float32))
        self.hook_ids: tuple[int, ...] = ()
        self._watchers: OfThread[Watcher] = OfThread()
        self._compiled_watcher: Watcher | None = None
        self._pending = PendingFactors()
        self._past = PastDecisions()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Gate:
        """Move or convert it, as `.to()` and the like do. tau and theta stay float32: in bfloat16 a threshold of 0.7
        would be 0.699."""
        before = {"tau": self.tau, "theta": self.theta}
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        keep_float32_(self, before)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """As any module, and with the owners of its units where the state has some."""
        put_owners_as_in_(self, prefix, state_dict)
        super()._load_from_state_dict(state_dict, prefix, *args)

    @property
    def watcher(self) -> Watcher | None:
        """Who is told what it decides in this thread. A graph of torch.compile has one for all threads."""
        return self._compiled_watcher if torch.compiler.is_compiling() else self._watchers.get()

    @watcher.setter
    def watcher(self, watcher: Watcher | None) -> None:
        self._watchers.set(watcher)
        self._compiled_watcher = watcher if watcher is not None else self._watchers.any()

    def __getstate__(self) -> dict[str, Any]:
        """For copies and pickles: nobody watches a copy."""
        return {**self.__dict__, "_compiled_watcher": None}

    def site_at(self, name: str) -> Site:
        """Its site as named by the model in which `named_gates` calls this gate `name`."""
        return self.site.moved_to(name)

    @property
    def bias(self) -> nn.Parameter:
        """The bias of the logits, one for each block: moving it opens or closes the gate for every input alike."""
        return self.last.bias  # type: ignore[return-value]

    @property
    def last(self) -> nn.Module:
        """The part of the gate network that gives the logits."""
        return self.net[-1] if isinstance(self.net, nn.Sequential) else self.net

    @property
    def logit_threshold(self) -> Tensor:
        """tau * logit(theta): the logit above which a block opens; tau and theta move it together. In float64, so
        that it is rounded only once."""
        return self.tau.double() * torch.logit(self.theta.double())

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the gate network for one row, as far as its connections exist."""
        if isinstance(self.net, ContextNet):
            return self.net.macs
        return sum(present(m) for m in self.net.modules() if isinstance(m, nn.Linear))

    @property
    def block_sizes(self) -> Tensor:
        """Units in each block: all `block`, except perhaps the last."""
        sizes = torch.full((self.blocks,), self.block, device=self.tau.device)
        sizes[-1] = self.site.width - self.block * (self.blocks - 1)
        return sizes

    @property
    def saves_producers(self) -> bool:
        """Whether closing units saves the work of the layers that write them."""
        return self.config.kind == "static" or self.site.decides_in_time

    @property
    def policy(self) -> Policy:
        """How it decides in the present mode. With top_k it is never noisy: a draw could not promise exactly k."""
        policy = self.config.train if self.training else self.config.evaluate
        return "hard" if self.config.top_k is not None and policy != "soft" else policy

    @property
    def pending(self) -> Tensor | None:
        """The factor that was decided before the source ran and that the consumer's input is still to be given."""
        return self._pending.peek()

    def take(self, rows: torch.Size | None = None) -> Tensor:
        """The pending factor, which is then given to a consumer whose input has these rows."""
        factor_BG = self._pending.take(rows)
        if factor_BG is None:
            raise RuntimeError(f"{self.site.consumer!r} ran before {self.site.source!r}: its gate has not decided yet")
        return factor_BG

    def expert_capacity(self, rows: int) -> int | None:
        """How many of `rows` rows each expert of a router takes in one forward pass; None: no limit."""
        if self.config.capacity is None:
            return None
        assert self.config.top_k is not None
        return expert_capacity(rows, count_of(self.config.top_k, self.blocks), self.blocks, self.config.capacity)

    def per_unit(self, value_BG: Tensor) -> Tensor:
        """The value of its block for every unit."""
        return value_BG.repeat_interleave(self.block, dim=-1)[..., : self.site.width]

    def forward(self, x_BD: Tensor) -> Decision:
        """Decide which blocks are open for each row."""
        config = self.config
        z_BG = self.net(x_BD).float()  # under autocast too: a threshold in bf16 would move gates by up to 0.4 %
        if config.kind == "context":  # z is 0 or 1 already
            return Decision(z_BG, z_BG, z_BG, 2.0 * z_BG - 1.0, routed=z_BG)
        if config.kind == "router":
            return self._route(z_BG)
        p_BG = torch.sigmoid(z_BG / self.tau)
        g_BG = self._harden(p_BG)
        if config.scale == "relu":
            return self._rectify(z_BG, p_BG, g_BG)
        policy = self.policy
        decisive_BG = z_BG  # the logits that decide what multiplies the units: those with noise, if there is some
        if policy == "hard":
            hard_BG, soft_BG = g_BG, p_BG
        elif policy == "soft":
            hard_BG, soft_BG = p_BG, p_BG
        elif policy == "bernoulli":
            hard_BG, soft_BG = self._keep_open(torch.bernoulli(p_BG.detach()), p_BG.detach()), p_BG
        else:
            decisive_BG = z_BG + _logistic_noise(z_BG)
            soft_BG = torch.sigmoid(decisive_BG / self.tau)
            hard_BG = self._harden(soft_BG) if policy == "gumbel" else soft_BG
        hard_BG = decided_BG = self._past.take(hard_BG)
        if config.soft_width:
            hard_BG = hard_BG * self._openness(decisive_BG.detach())
        if config.scale == "softmax":
            factor_BG = open_shares(z_BG / self.tau, hard_BG)
        else:
            factor_BG = _straight_through(hard_BG, soft_BG, scale=config.scale and policy != "soft")
        if policy not in ("soft", "concrete"):  # nothing can tip over in those
            self._past.keep(decided_BG, factor_BG)
        return Decision(p_BG, g_BG, factor_BG, z_BG, routed=g_BG)

    def _rectify(self, z_BG: Tensor, p_BG: Tensor, g_BG: Tensor) -> Decision:
        """Scale open blocks by how far they are above the threshold; only they pass a gradient."""
        open_BG = self._past.take(g_BG)
        above_BG = z_BG / self.tau - torch.logit(self.theta)
        # The slope is that of a block which is open, also where a recomputed logit is a rounding below the threshold.
        above_BG = torch.where(above_BG > 0, above_BG, above_BG - above_BG.detach())
        factor_BG = torch.where((open_BG > 0) | z_BG.isnan(), above_BG, 0.0)  # a NaN shows, as in `open_shares`
        self._past.keep(open_BG, factor_BG)
        return Decision(p_BG, g_BG, factor_BG, z_BG, routed=g_BG)

    def _route(self, z_BG: Tensor) -> Decision:
        assert self.config.top_k is not None
        k = count_of(self.config.top_k, self.blocks)
        p_BG = torch.softmax(z_BG / self.tau, dim=-1)
        routed_BG = top_k_mask(p_BG.detach(), k)
        # Only where there is one: asking for the number of rows ties an exported program to that number.
        capacity = None if self.config.capacity is None else self.expert_capacity(z_BG.shape[:-1].numel())
        drop_policy = self.config.drop_policy
        g_BG = routed_BG if capacity is None else drop_over_capacity(routed_BG, capacity, drop_policy)
        decided = self._past.take(torch.stack([routed_BG, g_BG]))
        routed_BG, g_BG = decided
        factor_BG = expert_weights(p_BG, routed_BG, k) * g_BG
        self._past.keep(decided, factor_BG)
        return Decision(p_BG, g_BG, factor_BG, z_BG, routed_BG)

    def opened_by(self, z_BG: Tensor) -> Tensor:
        """Which blocks these logits open, as deployed. Not for routers and contexts, which have no threshold."""
        return self._harden(torch.sigmoid(z_BG / self.tau))

    def _harden(self, p_BG: Tensor) -> Tensor:
        p_BG = p_BG.detach()
        if self.config.top_k is not None:
            return top_k_mask(p_BG, count_of(self.config.top_k, self.blocks))
        return self._keep_open((p_BG > self.theta).to(p_BG.dtype), p_BG)

    def _openness(self, z_BG: Tensor) -> Tensor:
        """How far open blocks are open: from 0 at the threshold to 1 at `soft_width` above it."""
        return ((z_BG / self.tau - torch.logit(self.theta)) / self.config.soft_width).clamp(0.0, 1.0)

    def _keep_open(self, g_BG: Tensor, p_BG: Tensor) -> Tensor:
        if not self.config.always_open:
            return g_BG
        return torch.maximum(g_BG, top_k_mask(p_BG, count_of(self.config.always_open, self.blocks)))

    def put_hook_(self, module: nn.Module, hook: Callable[..., Any], *, prepend: bool) -> None:
        """Make one of its methods a forward pre-hook, and remember it: torch.compile of torch < 2.12 cannot ask a hook
        whose method it is."""
        self.hook_ids += (module.register_forward_pre_hook(hook, prepend=prepend).id,)

    def put_hook_after_(self, module: nn.Module, hook: Callable[..., Any]) -> None:
        """Likewise a forward hook."""
        self.hook_ids += (module.register_forward_hook(hook).id,)

    def cut_after(self, _activation: nn.Module, _args: tuple[Any, ...], factors_BN: Tensor) -> Tensor:
        """Forward hook of the activation that gives factors: decide from them, and close those that are small."""
        return scale_units(factors_BN, self._watched(factors_BN).scale, self.block)

    def decide_before(self, source: nn.Module, args: tuple[Any, ...]) -> None:
        """Forward pre-hook of the source: decide from its input, before the producers do any work."""
        read = pooled(args[0], source, self.site.width) if self.site.channels else args[0]
        self._pending.put(self._watched(read).scale)

    def _watched(self, x_BD: Tensor) -> Decision:
        """Decide, and tell the watcher."""
        decision: Decision = self(x_BD)
        watcher = self.watcher
        if watcher is not None and not recomputing():
            watcher(self, decision)
        return decision

    def scale_before(self, consumer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """Forward pre-hook of the consumer: h <- g * h."""
        if self.site.channels:
            return (self._scale_channels(args[0], consumer), *args[1:])
        return (scale_units(args[0], self.take(args[0].shape[:-1]), self.block), *args[1:])

    def _scale_channels(self, x: Tensor, consumer: nn.Module) -> Tensor:
        factor_BG = self.take(images(x, consumer))
        if factor_BG.shape[:-1] != images(x, consumer):
            raise RuntimeError(
                f"the gate of {self.site.consumer!r} decided for images {list(factor_BG.shape[:-1])}, and "
                f"{self.site.consumer!r} reads {list(x.shape)}: what lies between must keep one row for each image"
            )
        return scale_channels(x, consumer, self.per_unit(factor_BG))

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        c = self.config
        shape = {"low-rank": f", rank {c.rank}", "two-layer": f", inner {c.rank}"}.get(c.net, "")
        kind = c.kind if c.kind in ("static", "context") else f"{c.kind} ({c.net}{shape})"
        routes = f", top {c.top_k}, capacity {c.capacity}" if c.kind == "router" else ""
        units = "channels" if self.site.channels else "units"
        return f"{kind}, {self.site.width} {units} in {self.blocks} blocks{routes}"


def check_same_config(gate: Gate, config: GateConfig, where: str) -> None:
    """Raise ValueError if `gate` decides by another rule than `config` says. What buffers hold, or only training reads,
    may differ."""
    left_out = ("open", "tau", "theta", "train")
    own, other = gate.config.to_dict(), config.to_dict()
    apart = [
        f"{name}={own[name]!r} instead of {other[name]!r}"
        for name in own
        if name not in left_out and own[name] != other[name]
    ]
    if apart:
        raise ValueError(
            f"the gate at {gate.site.name!r} differs from the one in {where}: it has {', '.join(apart)}. Load into a "
            "model with the same gates, or into one without: it gets those of the file"
        )


def scale_units(h_BN: Tensor, factor_BG: Tensor, block: int) -> Tensor:
    """Multiply every unit by the factor of its block."""
    factor_BG = factor_BG.to(h_BN.dtype)
    if block == 1:
        return h_BN * factor_BG
    if h_BN.shape[-1] % block == 0:
        return (h_BN.unflatten(-1, (-1, block)) * factor_BG.unsqueeze(-1)).flatten(-2)
    return h_BN * factor_BG.repeat_interleave(block, dim=-1)[..., : h_BN.shape[-1]]


def _straight_through(hard: Tensor, soft: Tensor, *, scale: bool) -> Tensor:
    """`hard` (times `soft` if scaled) going forward, the gradient of `soft` going back (sec 3.5)."""
    value = (hard * soft if scale else hard).detach()
    return value + (soft - soft.detach())  # the bracket is exactly zero, so the value is `hard` bit for bit


def _logistic_noise(like: Tensor) -> Tensor:
    u = torch.rand_like(like).clamp_(1e-6, 1.0 - 1e-6)
    return torch.log(u) - torch.log1p(-u)
