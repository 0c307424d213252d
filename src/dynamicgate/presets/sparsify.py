"""`sparsify_`: gates and dynamic sparse training that meet a MAC budget together, with settings from the budget alone.

The settings are the same for all data; docs/why-it-works.md says where the recipe pays and where it does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

from torch import nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget import Budget
from dynamicgate.data.contract import Inputs
from dynamicgate.data.tasks import OwnLoss, Task, as_task
from dynamicgate.gating.attach import Where, gate_, ungate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.recording import is_gated, named_gates
from dynamicgate.gating.unit_wise import UNIT_WISE_MODULES
from dynamicgate.gating.where import hidden
from dynamicgate.nn import GatedMLP, Normalize
from dynamicgate.presets.feed_forward import gate_feed_forward_, is_transformer
from dynamicgate.presets.pilot import Choice, Recipe, choose_recipe
from dynamicgate.presets.sparsity_plan import SparsityPlan
from dynamicgate.presets.stages import PLANS, PlanName, add_stages_, stage_costs
from dynamicgate.sparsity import Distribution, RigL, densities

BLOCK = 16  # units that open and close together
INITIAL_DENSITY = 1.0  # start dense: which connections to keep is then learned, not only guessed from a gradient
DISTRIBUTION: Distribution = "erk"
STACKED = (nn.Linear, nn.Flatten, Normalize, *UNIT_WISE_MODULES)
MIN_GATE_INPUTS = 4  # a gate that reads fewer inputs hardly depends on them and is not worth its cost


Gates = Literal["units", "two stages", "three stages", "blocks"]
TRIED: tuple[Gates, ...] = ("units", "two stages", "three stages")  # what "auto" chooses from on a stack of layers
STAGES: dict[Gates, PlanName] = {"two stages": "two", "three stages": "three"}


class Spending(NamedTuple):
    """How to spend a budget: fraction for gate networks, open rate of units, and how much wider to make layers."""

    gate_fraction: float
    open_rate: float
    widen: float


SPENDING = {  # by the smallest budget that each applies to
    0.0: Spending(0.05, 0.85, 1.0),  # connections are scarce: what closed units save pays for more of them
    0.1: Spending(0.02, 0.95, 1.25),  # connections suffice: more units to choose from help more
    0.2: Spending(0.02, 0.95, 1.5),
}


class Densities(NamedTuple):
    """Final fractions of the connections."""

    layers: float  # of all sparse layers together
    gates: float  # of the gate networks; 0 where there are none


def spending(budget: float) -> Spending:
    """The settings at a budget."""
    return SPENDING[max(least for least in SPENDING if least <= budget)]


def sparse_output(output: float, affordable: float) -> bool:
    """Whether the output layer must be sparse too: a dense one would take more than half of the affordable MACs."""
    return output > 0.5 * affordable


def affordable_densities(
    affordable: float, full: float, kept: float, gates: float, blocks: int, spend: Spending, *, always: bool = False
) -> Densities:
    """The densities that `affordable` MACs pay for. The dense model has `full` MACs, `kept` of them in layers that stay
    dense; dense gate networks over all `blocks` would have `gates` MACs. There are no gates where each could read too
    few inputs to depend on them, except with `always`.
    """
    fraction = spend.gate_fraction
    if always or fraction * affordable >= MIN_GATE_INPUTS * blocks > 0:
        wanted = (
            (1.0 - fraction) * affordable / spend.open_rate
        )  # closed units also save the MACs of the layer that reads them
        layers = min(1.0, max(fraction * affordable / full, (wanted - kept) / (full - kept)))
        return Densities(layers, min(1.0, fraction * affordable / gates))
    if affordable <= kept:
        budget = affordable / full
        raise ValueError(f"a budget of {budget:.3g} does not even pay for the dense output layer: raise the budget")
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
    """One RigL for the layers and all gate networks; gate networks are sparse from the first step."""
    shapes = {name: model.get_submodule(name).weight.shape for name in layers}
    each = densities(shapes, found.layers, distribution)  # type: ignore[arg-type]
    each |= {f"{name}.gate.net*": found.gates for name in named_gates(model)}
    return RigL(model, each, initial_density=dict.fromkeys(layers, initial_density), **rest)


def sparsify_(
    model: nn.Module,
    macs: float,
    *,
    data: Any = None,
    valid: Any = None,
    gates: Gates | Literal["auto"] | None = "auto",
    loss: str | Task | OwnLoss | None = None,
    example: Inputs | None = None,
    where: Where = hidden,
    pattern: str = "unstructured",
    every: int | None = None,
    seed: int = 0,
    show: bool = True,
    clock: bool = True,
) -> SparsityPlan:
    """Apply the benchmarked recipe to a model, in place: sparse layers, pruned from a dense start, and gates where they
    pay; in a Transformer, gates on blocks of its feed-forward units. Returns what `fit` needs to train it.

    macs: executed MACs relative to the dense model, gate networks and output layer included; with gates the mean over
        inputs.
    data: training rows, on which "auto" finds out whether gates pay: short trainings without gates and with each kind,
        judged on `valid`, or on rows held out of `data`; where these would be fewer than 200, every row is held out
        once, in three turns. Without data there are no gates.
    gates: "auto"; "units", gates on blocks of hidden units; "two stages" or "three stages", where easy inputs stop
        early; "blocks", which "auto" takes for a Transformer, gates on all feed-forward layers by the recipe of
        docs/language-models.md, for training from scratch (`hf.convert_` is for trained models); or None.
    loss: what `fit` will be given as loss, so that the short trainings learn the same; without classes the mean loss of
        held-out rows decides.
    example: a few inputs. Needed unless the model is a stack of Linear layers and unit-wise operations.
    where: the units to gate, as in `gate_`, with "units"; no channels of convolutions. pattern, seed: as in `RigL`;
        "16x1" is for speed on CPUs.
    every: optimizer steps between updates of the connections. None: 100, or fewer in a short run.
    show: print what each short training reached.
    clock: "auto" takes gates only where the compiled model is not slower with them than without, by more than 3 % at
        batch 1 or 256 on the CPU of this machine; False looks at MACs alone, and gives the same on every machine.

    >>> plan = dg.sparsify_(model, macs=0.1, data=(x, y))
    >>> dg.fit(model, (x, y), **plan)

    The recipe is described in docs/stages.md and docs/why-it-works.md, except that the width of the model stays as it
    is: `plan.notes` says how wide the benchmark makes hidden layers at this budget, and how it trains.
    """
    if not 0.0 < macs <= 1.0:
        raise ValueError(f"macs is a fraction of the dense MACs: expected 0 < macs <= 1, received {macs}")
    if is_gated(model):
        raise ValueError("this model has gates already: remove them with ungate_, sparsify_ adds its own")
    if gates not in ("auto", None, *get_args(Gates)):
        raise ValueError(f"gates must be auto, {', '.join(get_args(Gates))} or None, received {gates!r}")
    if data is None and valid is not None:
        raise ValueError("valid= is for deciding on gates, which needs data= to train on")
    task = as_task(loss)
    kinds = [kind for kind in TRIED if kind not in STAGES or task.name == "classification"]
    if gates in STAGES and gates not in kinds:
        raise ValueError(
            f"{gates} stop where class scores are sure, and loss={loss!r:.40} has none: take gates='units'"
        )
    if gates == "blocks" or (gates == "auto" and is_transformer(model)):
        return _with_blocks(model, macs, example, asked=gates == "blocks")
    options: dict[str, Any] = {"example": example, "pattern": pattern, "every": every, "seed": seed}

    def recipe(kind: Gates) -> Recipe:
        if kind == "units":
            return lambda one: _with_gates(one, macs, where=where, **options)
        return lambda one: _with_stages(one, macs, STAGES[kind], **options)

    def without(one: nn.Module) -> SparsityPlan:
        return _without_gates(one, macs, **options)

    if gates != "auto":
        choice = Choice(gates, f"{gates or 'no gates'}, as asked for")
    elif data is None:
        choice = Choice(None, "no gates: pass data= to find out whether they pay")
    else:
        candidates: dict[str, Recipe] = {kind: recipe(kind) for kind in kinds}
        choice = choose_recipe(
            model, data, valid, without=without, candidates=candidates, task=task, seed=seed, show=show, clock=clock
        )
    plan = without(model) if choice.name is None else recipe(choice.name)(model)  # type: ignore[arg-type]
    assert isinstance(plan, SparsityPlan)
    plan.notes.insert(0, choice.reason)
    return plan


def _with_blocks(model: nn.Module, macs: float, example: Inputs | None, *, asked: bool) -> SparsityPlan:
    """Gates on the blocks of feed-forward layers, all connections kept."""
    if example is None:
        raise ValueError(
            "what a Transformer costs depends on the length of its inputs: pass example= with a few of them"
        )
    if not is_transformer(model):
        raise ValueError(
            "gates='blocks' are for the feed-forward layers of a Transformer, and this model has none that are known: "
            "take another kind of gates, or dg.gate_(model, config, where=...) with sites of your own"
        )
    budget = gate_feed_forward_(model, macs, example)
    why = "as asked for" if asked else "this is a Transformer"
    notes = [f"gates on blocks of feed-forward units: {why}"]
    if origin := getattr(model, "name_or_path", ""):
        notes.append(f"the weights come from {origin!r}: to keep what they have learned take dynamicgate.hf.convert_")
    return SparsityPlan(budget, None, notes)


def _with_stages(
    model: nn.Module, macs: float, plan: PlanName, *, example: Inputs | None, **options: Any
) -> SparsityPlan:
    """Stages, each pruned from dense to what the budget gives it."""
    counter = _count(model, example)
    costs = [cost * counter.dense for cost in stage_costs(PLANS[plan], macs)]
    costs[0] -= counter.other
    if costs[0] <= 0.0:
        raise ValueError(f"a budget of {macs:g} does not pay for what is not a stack of Linear layers: raise it")
    sparsifier = add_stages_(model, costs, **options)
    budget = Budget(target=macs, sparsifier=sparsifier)
    return SparsityPlan(budget, sparsifier, _notes(macs), PLANS[plan].loss)


class _Layers(NamedTuple):
    """The layers of a model that become sparse, and the MACs that they may have."""

    names: list[str]
    full: float
    """MACs of all layers, dense."""
    kept: float
    """Of them, those that stay dense."""
    affordable: float


def _layers(model: nn.Module, macs: float, example: Inputs | None) -> _Layers:
    counter = _count(model, example)
    names, output = [layer.name for layer in counter.layers], counter.layers[-1].dense * counter.layers[-1].rows
    affordable = macs * counter.dense - counter.other
    if affordable <= 0.0:
        named = ", ".join(f"{name!r} {each / counter.dense:.3f}" for name, each in counter.other_layers.items())
        raise ValueError(
            f"a budget of {macs:g} cannot be met: what is no Linear layer costs {counter.other / counter.dense:.3f} of "
            f"dense and stays as it is{': ' + named if named else ''}. Ask for more"
        )
    thin = sparse_output(output, affordable)
    return _Layers(names if thin else names[:-1], counter.dense - counter.other, 0 if thin else output, affordable)


def _without_gates(model: nn.Module, macs: float, *, example: Inputs | None, **options: Any) -> SparsityPlan:
    """Layers pruned from dense."""
    layers = _layers(model, macs, example)
    found = affordable_densities(layers.affordable, layers.full, layers.kept, 0, 0, spending(macs))
    return SparsityPlan(None, _pruned_from_dense(model, layers.names, found, **options), _notes(macs))


def _with_gates(model: nn.Module, macs: float, *, example: Inputs | None, where: Where, **options: Any) -> SparsityPlan:
    """Gates on blocks of units, and layers pruned from dense."""
    layers = _layers(model, macs, example)
    gate_(model, GateConfig(block=BLOCK, net="linear"), _of_linears(where))
    try:
        if channels := [name for name, gate in named_gates(model).items() if gate.site.channels]:
            raise ValueError(
                f"{channels[0]!r} reads channels of convolutions, which this recipe does not gate: leave it out of "
                "where=, or use gate_ and a Budget in place of sparsify_"
            )
        cost, blocks = _count(model, example).gate, sum(gate.blocks for gate in named_gates(model).values())
        found = affordable_densities(layers.affordable, layers.full, layers.kept, cost, blocks, spending(macs))
        if not found.gates:
            raise ValueError(
                f"a budget of {macs:g} does not pay for gates on units that depend on the input: raise it, or take "
                "gates=None"
            )
        sparsifier = _pruned_from_dense(model, layers.names, found, **options)
    except ValueError:  # leave the model as it was
        ungate_(model)
        raise
    return SparsityPlan(Budget(target=macs, sparsifier=sparsifier), sparsifier, _notes(macs))


def _of_linears(where: Where) -> Where:
    """The same predicate without channels: what this recipe spends, it spends on Linear layers."""
    return (lambda site: where(site) and not site.channels) if callable(where) else where


def _pruned_from_dense(model: nn.Module, layers: Sequence[str], found: Densities, **options: Any) -> RigL:
    return fused_sparsifier(model, layers, found, initial_density=INITIAL_DENSITY, distribution=DISTRIBUTION, **options)


def _notes(macs: float) -> list[str]:
    notes, widen = [], spending(macs).widen
    if widen > 1.0:
        notes.append(
            f"at this budget the benchmarked recipe first makes hidden layers {widen:g} times as wide, and then "
            f"executes {macs:g} of the MACs of the model before that"
        )
    notes.append("the benchmarked recipe trains with 5/3 of the dense learning rate, weight decay 0.05 and dropout 0.1")
    return notes


def _count(model: nn.Module, example: Inputs | None) -> MacCounter:
    if example is not None:
        return count_macs(model, example)
    others = [m for m in model.modules() if not any(m.children()) and not isinstance(m, STACKED)]
    others = [m for m in others if not getattr(m, "unit_wise", False) and not _inside_gate(model, m)]
    if others or not isinstance(model, nn.Sequential | GatedMLP):
        what = type(others[0] if others else model).__name__
        raise ValueError(
            f"in a model with {what}, how often each layer runs per sample is only known from a forward pass: pass "
            "example= with a few inputs"
        )
    return MacCounter.for_mlp(model)


def _inside_gate(model: nn.Module, module: nn.Module) -> bool:
    return any(module is part for gate in named_gates(model).values() for part in gate.modules())
