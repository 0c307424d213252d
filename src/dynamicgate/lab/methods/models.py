"""The models that are compared, each a function from settings and data to a network, its budget and its sparsifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import nn

from dynamicgate.budget import Budget, GateBudget, OpenLoopBudget
from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.lab.datasets.splits import Splits
from dynamicgate.lab.methods.hyperparameters import Settings, dense_macs, given, own_budget
from dynamicgate.lab.methods.recipes import NO_GATES, plain_recipes
from dynamicgate.nn import GatedMLP, Normalize
from dynamicgate.presets import PLANS, add_stages_, stage_costs
from dynamicgate.presets.sparsify import Densities, fused_sparsifier
from dynamicgate.sparsity import SET, Distribution, LayerOptions, Magnitude, RigL, Sparsifier, Static
from dynamicgate.training.stage_loss import StageLoss

EXPERTS = 8
FIXED_LOGIT = 4.0  # of a gate that is not learned
BALANCE = 1e-2  # weight of the load-balance penalty, as in Switch Transformers and in the paper (sec 5.5)


class Prepared(NamedTuple):
    """A network, the budget of its gates, and what decides which of its connections exist."""

    model: nn.Module
    budget: GateBudget | None = None
    sparsifier: Sparsifier | None = None
    stage_loss: StageLoss | None = None


def dense(s: Settings, splits: Splits) -> Prepared:
    """The plain network: the quality to reach and the MACs to save."""
    return Prepared(_mlp(s, splits, dropout=s.dense_dropout))


def small(s: Settings, splits: Splits) -> Prepared:
    """A dense network as narrow as the budget: the control that every method must beat."""
    return Prepared(_mlp(s, splits, _affordable(s, splits), dropout=s.dense_dropout))


def dropout(s: Settings, splits: Splits) -> Prepared:
    """The dense network with dropout: regularisation without any saving."""
    return Prepared(_mlp(s, splits))


def static(s: Settings, splits: Splits) -> Prepared:
    """One learned logit per unit, the same units for every input, at the same budget."""
    budget = Budget(target=s.budget, anneal=s.anneal, order_units=s.order_units)
    return Prepared(_mlp(s, splits, gate=_gate(s, kind="static")), budget)


def random(s: Settings, splits: Splits) -> Prepared:
    """Units drawn once, the same for every input, as many as the budget allows: the control for learned gates."""
    block = given(s.block)
    model = _mlp(s, splits, gate=GateConfig(kind="static", block=block))
    draw = torch.Generator().manual_seed(s.seed)
    for found, width in zip(named_gates(model).values(), _affordable(s, splits, block=block), strict=True):
        drawn = torch.randperm(found.blocks, generator=draw)[: width // block]
        found.bias.requires_grad_(False).fill_(-FIXED_LOGIT).index_fill_(0, drawn, FIXED_LOGIT)
    return Prepared(model)


def gate(s: Settings, splits: Splits) -> Prepared:
    """Input-dependent gates, held to the budget: DynamicGate."""
    rank, floor = None if s.net == "linear" else given(s.rank), given(s.always_open) * s.budget
    model = _mlp(s, splits, gate=_gate(s, net=s.net, rank=rank, always_open=floor))
    if s.start_static:
        for found in named_gates(model).values():
            nn.init.zeros_(found.last.weight)  # type: ignore[arg-type]
    target = own_budget(s, splits)
    return Prepared(model, Budget(target=target, anneal=s.anneal, fold=s.fold, order_units=s.order_units))


def pruned(s: Settings, splits: Splits) -> Prepared:
    """Magnitude pruning during training, down to the density."""
    model = _mlp(s, splits)
    return Prepared(model, sparsifier=Magnitude(model, given(s.density), every=given(s.every), **_sparse(s)))


def static_sparse(s: Settings, splits: Splits) -> Prepared:
    """A random mask that never changes: the control for dynamic sparse training."""
    model = _mlp(s, splits)
    return Prepared(model, sparsifier=Static(model, given(s.density), seed=s.seed, **_sparse(s)))


def set_(s: Settings, splits: Splits) -> Prepared:
    """Prune the smallest weights, regrow random connections."""
    model = _mlp(s, splits)
    return Prepared(model, sparsifier=SET(model, given(s.density), **_dynamic(s), **_sparse(s)))


def rigl(s: Settings, splits: Splits) -> Prepared:
    """Prune the smallest weights, regrow the connections with the largest gradients."""
    model = _mlp(s, splits)
    return Prepared(model, sparsifier=RigL(model, given(s.density), **_dynamic(s), **_sparse(s)))


def gate_rigl(s: Settings, splits: Splits) -> Prepared:
    """Gates and RigL in one layer, with gate networks as sparse as the layers they gate and one budget for both. No
    gates where the budget is too small for any that could tell inputs apart."""
    if not s.gate_density:
        return rigl(s, splits)
    model, budget, *_ = gate(s, splits)
    layers = [f"layers.{index}" for index in range(len(s.widths) + (s.output == "sparse"))]
    found = Densities(given(s.density), s.gate_density)
    options = {**_dynamic(s), "pattern": s.pattern, "distribution": _distribution(s)}
    return Prepared(model, budget, fused_sparsifier(model, layers, found, **options))


def staged(s: Settings, splits: Splits) -> Prepared:
    """Stages: easy inputs stop early, hard ones open more; the recipe of rigl from dense inside each stage."""
    model, full = _mlp(s, splits), dense_macs((splits.train.features, *given(s.hidden), splits.classes))
    plan = PLANS[given(s.stages)]
    macs = [cost * full for cost in stage_costs(plan, s.budget)]
    options = {"prune_until": s.prune_until, "every": given(s.every), "seed": s.seed, "pattern": s.pattern}
    sparsifier = add_stages_(model, macs, decide=s.decide, initial_density=given(s.initial_density), **options)
    weights = (s.first_stage_weight, *(1.0 for _ in macs[1:]))
    loss = StageLoss(weights=weights, focus=given(s.focus), distill=s.stage_distill)
    return Prepared(model, Budget(target=own_budget(s, splits), anneal=s.anneal), sparsifier, loss)


def cascade_part(s: Settings, splits: Splits) -> Prepared:
    """The control for nested stages is trained by `lab.methods.cascade`: independent networks, one a stage. This is the
    first of them."""
    cost = stage_costs(PLANS[given(s.stages)], s.budget)[0]
    return rigl(part_of_cascade(s, cost).resolved(splits), splits)


def part_of_cascade(s: Settings, cost: float) -> Settings:
    """The settings of one network of a cascade."""
    return replace(
        s, model="rigl", budget=cost, widen=None, density=None, output="auto", stages=None, focus=None, decide="margin",
        stage_distill=0.0, first_stage_weight=1.0,
    )  # fmt: skip


def switch(s: Settings, splits: Splits) -> Prepared:
    """Mixture of experts, one per input (Switch): blocks of a wide network that compete, with unlimited capacity."""

    def routers(hidden: tuple[int, ...]) -> int:
        readers = (splits.train.features, *(EXPERTS * width for width in hidden[:-1]))
        return EXPERTS * sum(readers)

    widths = _affordable(s, splits, routers)
    model = _mlp(s, splits, [EXPERTS * width for width in widths])
    for index, width in enumerate(widths, start=1):
        gate_(model, GateConfig(kind="router", block=width), where=f"layers.{index}")
    return Prepared(model, OpenLoopBudget(form="balance", weight=BALANCE))


def sparsify(s: Settings, splits: Splits) -> Prepared:
    """What `sparsify_` makes of a budget and the data, which `lab.methods.pilots` finds out. This is the recipe without
    gates, which is always among the candidates."""
    return rigl(plain_recipes(s)[NO_GATES].resolved(splits), splits)


MODELS: dict[str, Callable[[Settings, Splits], Prepared]] = {
    "dense": dense,
    "small": small,
    "dropout": dropout,
    "static": static,
    "random": random,
    "gate": gate,
    "pruned": pruned,
    "static-sparse": static_sparse,
    "set": set_,
    "rigl": rigl,
    "gate+rigl": gate_rigl,
    "switch": switch,
    "staged": staged,
    "staged-random": staged,
    "cascade": cascade_part,
    "sparsify": sparsify,
}


def _affordable(
    s: Settings, splits: Splits, extra: Callable[[tuple[int, ...]], int] | None = None, block: int = 1
) -> tuple[int, ...]:
    """The hidden widths, in the proportions asked for and in whole blocks, whose MACs, with the `extra` ones, come
    closest to the budget."""
    asked = given(s.hidden)

    def macs(hidden: tuple[int, ...]) -> int:
        return dense_macs((splits.train.features, *hidden, splits.classes)) + (extra(hidden) if extra else 0)

    wanted = s.budget * dense_macs((splits.train.features, *asked, splits.classes))
    narrower = [tuple(block * max(1, round(width * k / 4096 / block)) for width in asked) for k in range(1, 4097)]
    return min(narrower, key=lambda hidden: abs(macs(hidden) - wanted))


def _gate(s: Settings, **shape: Any) -> GateConfig:
    rule: dict[str, Any] = {"train": s.policy, "tau": s.tau, "theta": s.theta, "scale": s.scale}
    return GateConfig(block=given(s.block), soft_width=s.soft_width, **rule, **shape)


def _distribution(s: Settings) -> Distribution:
    assert s.distribution != "auto", "settings must be resolved"
    return s.distribution


def _dynamic(s: Settings) -> dict[str, Any]:
    """How connections are pruned and regrown."""
    initial = given(s.initial_density)
    return {"initial_density": initial, "prune_until": s.prune_until, "every": given(s.every), "seed": s.seed}


def _sparse(s: Settings) -> LayerOptions:
    """Which layers are sparse and how."""
    include = ["layers.*"] if s.output == "sparse" else ()
    return {"pattern": s.pattern, "distribution": _distribution(s), "include": include}


def _mlp(
    s: Settings,
    splits: Splits,
    hidden: Sequence[int] | None = None,
    *,
    dropout: float | None = None,
    gate: GateConfig | None = None,
) -> GatedMLP:
    return GatedMLP(
        (splits.train.features, *(hidden or s.widths), splits.classes),
        gate,
        activation=s.activation,
        dropout=s.dropout if dropout is None else dropout,
        normalize=Normalize(splits.mean, splits.std),
    )
