"""The recipe: gates and rewiring that meet a budget together, with settings that follow from the budget alone.

They were found on validation rows of six data sets and are the same for all: docs/why-it-works.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.budget import Budget
from dynamicgate.gating.attach import Where, gate_, ungate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.where import hidden
from dynamicgate.sparsity import Distribution, RigL, densities

BLOCK = 16  # units that open and close together
START = 1.0  # dense at first: what is worth keeping is then known, and not only guessed from a gradient
DISTRIBUTION: Distribution = "erk"
FEWEST_READ = 4  # inputs of a gate: one that reads fewer says next to nothing about them, and is not worth its cost


class Spending(NamedTuple):
    """What becomes of a budget: the share its gates take, how many units they leave open, how wide layers best are."""

    gate_share: float
    open_rate: float
    widen: float


SPENDING = {  # from this budget on
    0.0: Spending(0.05, 0.85, 1.0),  # connections are scarce: what closed units save pays for some
    0.1: Spending(0.02, 0.95, 1.25),  # there are enough: more units to choose from are worth more
    0.2: Spending(0.02, 0.95, 1.5),
}


class Densities(NamedTuple):
    """Shares of the connections that exist in the end."""

    layers: float  # of all sparse layers together
    gates: float  # of the gate networks; 0 where there are none


def spending(budget: float) -> Spending:
    """The settings at a budget."""
    return SPENDING[max(least for least in SPENDING if least <= budget)]


def sparse_output(output: float, affordable: float) -> bool:
    """Whether the output layer is sparse as well: dense it would take more than half of what there is."""
    return output > 0.5 * affordable


def affordable_densities(
    affordable: float, full: float, kept: float, gates: float, blocks: int, spend: Spending, *, always: bool = False
) -> Densities:
    """What `affordable` MACs pay for in a model of `full` ones, `kept` of them in layers that stay dense, with `gates`
    in dense gate networks over so many blocks. No gates where they could tell no input from another, but for `always`.
    """
    share = spend.gate_share
    if always or share * affordable >= FEWEST_READ * blocks > 0:
        wanted = (1.0 - share) * affordable / spend.open_rate  # closed units also save what reads them
        layers = min(1.0, max(share * affordable / full, (wanted - kept) / (full - kept)))
        return Densities(layers, min(1.0, share * affordable / gates))
    if affordable <= kept:
        budget = affordable / full
        raise ValueError(f"a budget of {budget:.3g} does not even pay for the dense output layer: ask for more")
    return Densities(min(1.0, (affordable - kept) / (full - kept)), 0.0)


def fused_sparsifier(
    model: nn.Module,
    layers: Sequence[str],
    found: Densities,
    *,
    initial_density: float,
    distribution: Distribution,
    **rest: Any,
) -> RigL:
    """One sparsifier for layers and all gate networks; gate networks are sparse from the first step."""
    shapes = {name: model.get_submodule(name).weight.shape for name in layers}
    shares = densities(shapes, found.layers, distribution)  # type: ignore[arg-type]
    shares |= {f"{gate.site.consumer}.gate.net*": found.gates for gate in named_gates(model).values()}
    return RigL(model, shares, initial_density=dict.fromkeys(layers, initial_density), **rest)


def recipe_(
    model: nn.Module,
    budget: float,
    *,
    where: Where = hidden,
    pattern: str = "unstructured",
    every: int = 100,
    seed: int = 0,
) -> tuple[Budget | None, RigL]:
    """Put the recipe on a model, in place: gates on its hidden units, sparse layers, and what steers both.

    budget: executed MACs relative to the dense model, gate networks and output layer included.
    where: the units to gate, as in `gate_`. pattern, every, seed: as in `RigL`; "16x1" is for speed on CPUs.

    Give both results to `fit`, or to your own loop. The first is None where the budget does not pay for gates that
    could tell inputs apart: then there are none, and connections alone meet it. From a budget of 0.1 on it pays to make
    hidden layers a quarter wider, from 0.2 on half as wide again, and to ask for as many MACs as before.
    """
    if not 0.0 < budget <= 1.0:
        raise ValueError(f"a budget is a share of the dense MACs: expected 0 < budget <= 1, received {budget}")
    if named_gates(model):
        raise ValueError("this model has gates already: take them off with ungate_, the recipe chooses its own")
    counter = MacCounter(model)
    names, output = [layer.name for layer in counter.layers], counter.layers[-1].dense
    affordable = budget * counter.dense
    thin = sparse_output(output, affordable)
    layers = names if thin else names[:-1]
    gate_(model, GateConfig(block=BLOCK, net="linear"), where)
    try:
        cost, blocks = MacCounter(model).gate, sum(gate.blocks for gate in named_gates(model).values())
        found = affordable_densities(affordable, counter.dense, 0 if thin else output, cost, blocks, spending(budget))
        if not found.gates:
            ungate_(model)
        options: dict[str, Any] = {"pattern": pattern, "every": every, "seed": seed}
        sparsifier = fused_sparsifier(model, layers, found, initial_density=START, distribution=DISTRIBUTION, **options)
    except ValueError:  # the model stays what it was
        ungate_(model)
        raise
    return (Budget(target=budget) if found.gates else None), sparsifier
