"""The feed-forward layers that are compared: dense, gated, mixtures of experts and sparse ones, at equal MACs.

Widths are in multiples of the features d. `executes` is the width of the dense layer that costs as much, gate network
or router included: a method with `executes=1` runs as many MACs for a token as the dense model with a width of 1 d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from dynamicgate.accounting import count_macs
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.budget import Budget, OpenLoopBudget
from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.lab.language.equal_layers import EqualLayersBudget
from dynamicgate.lab.language.gpt import GPT, GPTConfig, ffn_sites
from dynamicgate.lab.language.relu_router import ReluRouterBudget
from dynamicgate.sparsity import Magnitude, RigL, Sparsifier

BALANCE = 1e-2  # weight of the load-balance penalty of a softmax router
LINEARS = ("blocks.*.ffn.up", "blocks.*.ffn.down")
Method = Literal[
    "dense", "gate", "top-k", "router", "relu router", "static", "random", "rigl", "magnitude", "gate+rigl"
]


@dataclass(frozen=True, kw_only=True)
class FFNSettings:
    """One kind of feed-forward layer.

    method: see `METHODS`. width: of the stored layer. executes: of the dense layer that costs as much; None: `width`.
    block: units that open together. net, rank, scale, always_open, floor, on_collapse, warmup, ramp (fraction of
        training over which the budget falls), open (probability at the start), gate_gradient, kernels: of gates.
    balance: weight of the load-balance penalty of routers; gate_balance: of one for gates; locality: of the penalty on
        blocks that only one of 16 tokens opens.
    density: of the connections of `gate+rigl`.
    layers: "free" shares the budget of `gate` among the layers as training finds best, "equal" gives all the same.
    rates: of the layers of `top-k`, instead of the same for all.
    """

    method: Method = "dense"
    width: float = 4.0
    executes: float | None = None
    block: int = 64
    net: Literal["linear", "low-rank"] = "linear"
    rank: int | None = None
    scale: bool | Literal["softmax", "relu"] = True
    always_open: int | float = 0
    floor: float = 0.02
    on_collapse: Literal["act", "report", "ignore"] = "act"
    warmup: float = 0.01
    ramp: float = 0.1
    gate_gradient: Literal["dense", "sparse"] = "dense"
    open: float = 0.8
    balance: float = BALANCE
    gate_balance: float = 0.0
    locality: float = 0.0
    density: float = 0.5
    kernels: Literal["auto", "always", "never"] = "auto"
    layers: Literal["free", "equal"] = "free"
    rates: tuple[float, ...] | None = None

    @property
    def learns_from_closed_blocks(self) -> bool:
        """Whether gates get the exact gradient, which computes closed blocks in the backward pass."""
        exact = self.gate_gradient == "dense" and self.scale not in ("softmax", "relu")
        return exact and self.method in ("gate", "static", "gate+rigl", "top-k")


class Prepared(NamedTuple):
    """A model, what steers its gates, and what prunes it."""

    model: GPT
    budget: Budget | OpenLoopBudget | ReluRouterBudget | EqualLayersBudget | None
    sparsifier: Sparsifier | None
    counter: MacCounter


def prepare(
    settings: FFNSettings, sizes: GPTConfig, device: torch.device, seed: int = 0, drawn_on: torch.device | None = None
) -> Prepared:
    """The model of these settings on `device`; `sizes.width` is replaced. drawn_on: where weights are drawn, the CPU by
    default, so that all machines have the same."""
    if settings.method not in METHODS:
        raise ValueError(f"unknown method {settings.method!r}: expected one of {', '.join(METHODS)}")
    width = round(settings.width * sizes.features)
    if settings.gate_gradient == "sparse" and device.type != "cuda":
        raise ValueError("gate_gradient='sparse' is a property of the GPU kernels: expected a CUDA device, or 'dense'")
    options: Any = {"gate_gradient": settings.gate_gradient, "kernels": settings.kernels}
    with drawn_on or torch.device("cpu"):
        model = GPT(replace(sizes, width=width, **options)).to(device)
    return METHODS[settings.method](settings, model, seed)


def _dense(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    return Prepared(model, None, None, _counter(model))


def _gate(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    kind: Any = "static" if settings.method == "static" else "dynamic"
    shape: Any = {} if kind == "static" else {"net": settings.net, "rank": settings.rank}
    config = GateConfig(
        kind=kind, block=settings.block, scale=settings.scale, open=settings.open, always_open=settings.always_open,
        **shape,
    )  # fmt: skip
    gate_(model, config, where=ffn_sites(model))
    counter = _counter(model)
    if settings.layers == "equal":
        return Prepared(model, _equal_layers(settings, model), None, counter)
    return Prepared(model, _budget(settings, model, counter), None, counter)


def _gate_and_rigl(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    prepared = _gate(settings, model, seed)
    sparsifier = RigL(
        model, settings.density, initial_density=1.0, every=None, include=LINEARS, distribution="uniform", seed=seed
    )
    assert isinstance(prepared.budget, Budget)
    prepared.budget.sparsifier = sparsifier  # gates do not pay for connections that are still to be pruned
    return prepared._replace(sparsifier=sparsifier)


def _top_k(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    """Exactly as many blocks as the budget pays for, for every token in every layer. A balanced load comes from a
    budget that asks for nothing else."""
    sites, features = ffn_sites(model), model.config.features
    _refuse_idle(settings)
    if settings.rates is None:
        counts = [affordable(settings, features)] * len(sites)
    elif len(settings.rates) != len(sites):
        raise ValueError(f"rates has {len(settings.rates)} values: expected one for each of the {len(sites)} layers")
    else:
        counts = [max(1, round(rate * blocks_of(settings, features))) for rate in settings.rates]
    shared: Any = {"block": settings.block, "net": settings.net, "rank": settings.rank, "scale": settings.scale}
    for site, top_k in zip(sites, counts, strict=True):
        gate_(model, GateConfig(top_k=top_k, **shared), where=[site])
    if settings.method == "random":  # choices that depend on the token and are never learned
        for gate in named_gates(model).values():
            gate.requires_grad_(False)
    budget = OpenLoopBudget(weight=0.0, floor=0.0, on_collapse="ignore", balance=settings.gate_balance)
    return Prepared(model, budget if settings.gate_balance else None, None, _counter(model))


def _refuse_idle(settings: FFNSettings) -> None:
    """What means nothing where the number of open blocks is fixed, and where gates do not learn."""
    if settings.always_open:
        raise ValueError(
            f"method {settings.method!r} opens the same number of blocks for every token: expected always_open=0, "
            f"received {settings.always_open!r}"
        )
    if settings.method == "random" and settings.gate_balance:
        raise ValueError(
            "gates of method 'random' are never trained, so that no penalty balances them: expected gate_balance=0, "
            f"received {settings.gate_balance!r}"
        )


def _router(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    """Mixture of experts: a softmax over the blocks, the best of them open, and a penalty that balances their load."""
    config = GateConfig(kind="router", block=settings.block, top_k=affordable(settings, model.config.features))
    gate_(model, config, where=ffn_sites(model))
    budget = OpenLoopBudget(form="balance", weight=settings.balance) if settings.balance else None
    return Prepared(model, budget, None, _counter(model))


def _relu_router(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    features = model.config.features
    budget = ReluRouterBudget(rate_at(settings, model, features * blocks_of(settings, features)))
    budget.attach_(model, settings.block)
    return Prepared(model, budget, None, _counter(model))


def _sparse(settings: FFNSettings, model: GPT, seed: int) -> Prepared:
    """Connections instead of units: pruned from dense, with regrowth ("rigl") or without."""
    assert settings.executes is not None
    density = settings.executes / settings.width
    shared: dict[str, Any] = {"include": LINEARS, "distribution": "uniform"}
    if settings.method == "rigl":
        sparsifier: Sparsifier = RigL(model, density, initial_density=1.0, every=None, seed=seed, **shared)
    else:
        sparsifier = Magnitude(model, density, **shared)
    return Prepared(model, None, sparsifier, _counter(model))


METHODS: dict[str, Callable[[FFNSettings, GPT, int], Prepared]] = {
    "dense": _dense,
    "gate": _gate,
    "static": _gate,
    "gate+rigl": _gate_and_rigl,
    "top-k": _top_k,
    "random": _top_k,
    "router": _router,
    "relu router": _relu_router,
    "rigl": _sparse,
    "magnitude": _sparse,
}


def _counter(model: GPT) -> MacCounter:
    ids = torch.zeros(1, model.config.context, dtype=torch.long, device=model.head.weight.device)
    return count_macs(model, ids)


def _budget(settings: FFNSettings, model: GPT, counter: MacCounter) -> Budget:
    """A closed loop at the cost of the dense model of width `executes`."""
    config = model.config
    executes = settings.width if settings.executes is None else settings.executes
    saved = 2 * config.features * (config.width - executes * config.features) * config.layers * config.context
    return Budget(
        target=1.0 - saved / counter.dense, warmup=settings.warmup, anneal=settings.ramp, floor=settings.floor,
        on_collapse=settings.on_collapse, balance=settings.gate_balance, locality=settings.locality, counter=counter,
        wait=False,
    )  # fmt: skip


def _equal_layers(settings: FFNSettings, model: GPT) -> EqualLayersBudget:
    """The same open rate for all layers, at the cost of the dense model of width `executes`."""
    gate = sum(gate.macs for gate in named_gates(model).values()) / model.config.layers
    return EqualLayersBudget(rate_at(settings, model, gate), settings.warmup, settings.ramp)


def rate_at(settings: FFNSettings, model: GPT, network: float) -> float:
    """The open rate at which a layer costs as much as the dense one of width `executes`, where the gate network or the
    router of the layer takes `network` MACs."""
    executes = settings.width if settings.executes is None else settings.executes
    return (2 * executes * model.config.features**2 - network) / (2 * model.config.features * model.config.width)


def blocks_of(settings: FFNSettings, features: int) -> int:
    """Blocks of a feed-forward layer of a model with so many features."""
    return math.ceil(round(settings.width * features) / settings.block)


def affordable(settings: FFNSettings, features: int) -> int:
    """How many blocks of a layer the cost of the dense layer pays for, after its router."""
    executes = settings.width if settings.executes is None else settings.executes
    router = features * blocks_of(settings, features)
    count = math.floor((2 * executes * features**2 - router) / (2 * features * settings.block) + 1e-9)
    if count < 1:
        raise ValueError(
            f"a layer of width {executes:g} d does not pay for one block of {settings.block} units and a router over "
            f"{blocks_of(settings, features)} blocks: expected a larger `executes` or another block"
        )
    return count
