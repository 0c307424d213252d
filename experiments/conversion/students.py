"""The arms: from the dense model to the student of each, at a fraction of the MACs of the feed-forward layers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, nn

from dynamicgate.budget import Budget, calibrate_
from dynamicgate.gating.patterns import MLP_ALL, MLP_INPUTS
from dynamicgate.hf import convert_, measure, order_
from dynamicgate.linears import in_features
from experiments.conversion.experts import to_experts_
from experiments.conversion.models import ffn_macs, ffn_sites
from experiments.conversion.selections import Oracle, Selection, Threshold
from experiments.conversion.static_width import importance, most_important, remove_units_

Method = Literal[
    "dense", "gate", "magnitude", "static width", "experts", "converted", "unit oracle", "block oracle",
    "ordered block oracle", "threshold", "input thresholds",
]  # fmt: skip
TRAINED: tuple[Method, ...] = ("dense", "gate", "magnitude", "static width", "experts")
# 2 M tokens are 61 steps, in which gates that all start far above their threshold, or move with the default steer of
# 0.3, do not come down to the budget.
START = 0.98  # of the MACs of the feed-forward layers, at which gates start
STEER = 3.0
THRESHOLD_STEER = 1.0  # thresholds start at the budget and have little way to go


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One student.

    method: see `METHODS` in docs/language-models.md. ffn: executed MACs of the feed-forward layers relative to the
        dense ones, gate networks included. block: units that open together. rank: of the gate network, relative to the
        features it reads; None: linear. experts: that the units are clustered into. ramp: the fraction of training over
        which the budget of gates falls. factors: whether thresholds that are trained are on factors too, or on
        inputs alone.
    """

    method: Method
    ffn: float = 1.0
    block: int = 32
    rank: float | None = None
    experts: int = 16
    ramp: float = 0.5
    factors: bool = True

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise ValueError(f"unknown method {self.method!r}: expected one of {', '.join(get_args(Method))}")
        if not 0.0 < self.ffn <= 1.0:
            raise ValueError(f"ffn is a fraction of the MACs: expected 0 < ffn <= 1, received {self.ffn}")


@dataclass(frozen=True)
class Student:
    """A model, what holds its gates to their cost, and what keeps only some of its units where that is no gate."""

    model: nn.Module
    budget: Budget | None = None
    selection: Selection | None = None


@dataclass(frozen=True)
class Samples:
    """Inputs that conversions look at. training: enough to rank units by; validation: to put thresholds."""

    training: Sequence[dict[str, Tensor]]
    validation: Sequence[dict[str, Tensor]]


def make_student(arm: Arm, dense: nn.Module, samples: Samples) -> Student:
    """A student from a copy of the dense model, which stays as it is."""
    model = copy.deepcopy(dense)
    sites = ffn_sites(model)
    if arm.method == "dense":
        return Student(model)
    if arm.method in ("gate", "converted"):
        return _gated(arm, model, samples)
    if arm.method in ("magnitude", "input thresholds"):
        return _with_thresholds(arm, model, samples)
    if arm.method == "static width":
        kept = most_important(importance(model, sites, samples.training), arm.ffn)
        remove_units_(model, sites, kept)
        return Student(model)
    if arm.method == "experts":
        to_experts_(model, sites, arm.experts, arm.ffn)
        return Student(model)
    if arm.method == "threshold":
        return Student(model, selection=Threshold(model, sites, arm.ffn, samples.validation))
    if arm.method == "ordered block oracle":
        order_(model, samples.training, block=arm.block, show=False)
    block = 1 if arm.method == "unit oracle" else arm.block
    return Student(model, selection=Oracle(model, sites, arm.ffn, block))


def without_dropout_(model: nn.Module) -> None:
    """Let a model compute in training what it computes otherwise. A student that drops at random what its dense model
    keeps learns to make up for that."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _gated(arm: Arm, model: nn.Module, samples: Samples) -> Student:
    """Gates that are nearly all open where they are trained, and at the budget where they are not."""
    target = model_target(model, arm.ffn, samples.validation)
    start = model_target(model, START, samples.validation) if arm.method == "gate" else target
    budget = Budget(target=target, warmup=0.0, anneal=arm.ramp, steer=STEER)
    net, rank = _network(arm, model)
    convert_(model, budget, samples.training, block=arm.block, net=net, rank=rank, show=False)
    calibrate_(model, samples.validation, macs=start)
    return Student(model, budget)


def _with_thresholds(arm: Arm, model: nn.Module, samples: Samples) -> Student:
    """Thresholds on all that the layers read, at the budget from the start."""
    target = model_target(model, arm.ffn, samples.validation)
    budget = Budget(target=target, warmup=0.0, anneal=arm.ramp, steer=THRESHOLD_STEER)
    where = MLP_ALL if arm.factors and arm.method == "magnitude" else MLP_INPUTS
    convert_(model, budget, samples.training, net="magnitude", where=where, show=False)
    calibrate_(model, samples.validation, macs=target)
    return Student(model, budget)


def _network(arm: Arm, model: nn.Module) -> tuple[Literal["linear", "low-rank"], int | None]:
    if arm.rank is None:
        return "linear", None
    features = in_features(model.get_submodule(ffn_sites(model)[0].source))
    return "low-rank", max(1, round(arm.rank * features))


def model_target(model: nn.Module, ffn: float, inputs: Sequence[dict[str, Tensor]]) -> float:
    """What a whole model executes on these inputs, relative to dense, if its feed-forward layers execute `ffn` of
    theirs. The longer the inputs, the less of the model these are."""
    dense = measure(model, inputs).macs["dense"]
    return 1.0 - (1.0 - ffn) * ffn_macs(model, ffn_sites(model)) / dense
