"""`convert_`: a trained dense model becomes a gated one that training only has to repair."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.rates import open_rate_at
from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget import Budget
from dynamicgate.budget.calibration import calibrate_, executed_relative
from dynamicgate.data.contract import Inputs, move, take_first
from dynamicgate.gating.attach import Where, gate_, select_sites, ungate_
from dynamicgate.gating.gate import GateConfig, count_of
from dynamicgate.gating.patterns import MLP, MLP_ALL
from dynamicgate.gating.recording import is_gated, named_gates
from dynamicgate.gating.unit_order import check_movable
from dynamicgate.hf.activity import read_batches
from dynamicgate.hf.initial_gates import TOKENS, init_gates_, observe_logits
from dynamicgate.hf.ordering import order_sites_
from dynamicgate.hf.thresholds import put_thresholds_

BLOCK = 32
SHARED_OF_OPEN, SHARED_AT_MOST = 0.25, 0.125  # of the open blocks, of all blocks
CHECK_TOKENS = 1024
WITHIN = 0.01  # of the dense MACs: what training has to correct anyway
WHY_NO_FACTORS = "their activation is no module of its own, or none was asked for"
MARGIN = 1.0  # temperatures above the threshold, for other inputs


class ConversionPlan(Mapping[str, Any]):
    """What `convert_` did to a model, as the arguments that training needs: ``GateCallback(**plan)``, or `plan.budget`
    in a loop of your own.

    budget: holds the gates to the target. open_rate: the fraction of the blocks of each layer that the target pays for.
    explained: how well each gate foresees what its blocks add, by site. notes: what was done.
    """

    def __init__(self, budget: Budget, open_rate: float, explained: Mapping[str, float], notes: Sequence[str]) -> None:
        """Made by `convert_`."""
        self.budget, self.open_rate = budget, open_rate
        self.explained, self.notes = dict(explained), list(notes)

    def __getitem__(self, name: str) -> Any:
        if name != "budget":
            raise KeyError(name)
        return self.budget

    def __iter__(self) -> Iterator[str]:
        return iter(("budget",))

    def __len__(self) -> int:
        return 1

    def __str__(self) -> str:
        held = f"gates held to {self.budget.target:g} of the dense MACs"
        return "\n".join([held, *(f"note: {note}" for note in self.notes)])


def convert_(
    model: nn.Module,
    budget: float | Budget,
    batches: Any,
    *,
    block: int | None = None,
    always_open: int | float | None = None,
    net: Literal["auto", "linear", "low-rank", "two-layer", "magnitude"] = "linear",
    rank: int | None = None,
    where: Where | None = None,
    start: Literal["budget", "open"] = "budget",
    tokens: int = TOKENS,
    show: bool = True,
) -> ConversionPlan:
    """Turn a trained model into a gated one, in place: put gates on, order the units, and fit the gates to what the
    blocks add to the output. Returns what training needs.

    budget: executed MACs relative to the dense model, everything counted, or a `Budget`.
    batches: typical inputs, as `measure` takes them; shuffle them, because only the first `tokens` tokens are read.
    block: units that open and close together. None: 32, and with magnitudes each unit by itself.
    always_open: blocks at the front that stay open for every token (a count, or a fraction below 1); they get the most
        active units. None: a quarter of what the budget pays for, and at most an eighth of all; none at all where
        blocks are so few that no others could open.
    net, rank: as in `GateConfig`. A linear gate network costs about 1 / (3 block) of a gated feed-forward layer. With
        "magnitude" there is no network: thresholds cut what is small among all that the feed-forward layers read, and
        among the factors of gated linear units. That loses less, and saves time only where one row runs at a time, as
        in decoding one sequence.
    where: as in `gate_`. None: "mlp", and with magnitudes "mlp-all".
    start: with "budget" the model executes the budget from now on. With "open" all gates are open on these batches, so
        that the model computes what it did, and the budget closes the least needed blocks first, over the first half of
        training.

    >>> plan = dg.hf.convert_(model, 0.6, batches)
    >>> trainer = Trainer(model, args, callbacks=[dg.hf.GateCallback(**plan, teacher=dense)], ...)
    """
    if start not in ("budget", "open"):
        raise ValueError(f"start must be budget or open, received {start!r}")
    if is_gated(model):
        raise ValueError("this model has gates already: take them off with ungate_, convert_ adds its own")
    held = budget if isinstance(budget, Budget) else Budget(target=budget)
    inputs = read_batches(batches, tokens)
    if net == "magnitude":
        refused = {"always_open": always_open, "rank": rank, "start": None if start == "budget" else start}
        if received := ", ".join(f"{name}={value!r}" for name, value in refused.items() if value is not None):
            raise ValueError(
                f"{received} means nothing with net='magnitude', which has thresholds alone and begins at the budget"
            )
        return _with_thresholds(model, held, inputs, block, where or MLP_ALL, show)
    block, sites = block or BLOCK, select_sites(model, where or MLP)
    for site in sites:
        check_movable(model, site)
    gate_(model, GateConfig(block=block, net=net, rank=rank), sites)
    try:
        counter = _bound_counter(model, held, inputs)
        rate = open_rate_at(counter, held.target)
        if always_open is None:
            always_open = _shared(rate, [gate.blocks for gate in named_gates(model).values()])
        for gate in named_gates(model).values():  # not known before: what gates cost decides what can be open
            gate.config = replace(gate.config, always_open=always_open)
        order_sites_(model, sites, inputs, block, always_open, show=show)
        explained = init_gates_(model, inputs, open_rate=rate, tokens=tokens, show=show)
    except ValueError:  # leave the model as it was
        ungate_(model)
        raise
    shared = {count_of(always_open, gate.blocks) for gate in named_gates(model).values()}
    notes = [
        f"{len(sites)} sites in blocks of {block} units, ordered; always open at each: "
        f"{' or '.join(map(str, sorted(shared)))} blocks",
        f"gates fitted to open {rate:.1%} of the blocks of each site; they explain "
        f"{sum(explained.values()) / len(explained):.0%} of the variance of what blocks add",
        _start(model, held, counter, inputs, start),
    ]
    return ConversionPlan(held, rate, explained, notes)


def _with_thresholds(
    model: nn.Module, budget: Budget, inputs: Sequence[Inputs], block: int | None, where: Where, show: bool
) -> ConversionPlan:
    """Gates that open what is large, at the budget on the first of these inputs."""
    sites = select_sites(model, where)
    gate_(model, GateConfig(block=block, net="magnitude", reads="same"), sites)
    try:
        counter = _bound_counter(model, budget, inputs)
        rate = put_thresholds_(model, counter, budget.target, inputs, show)
        few = [move(x, next(model.parameters()).device) for x in read_batches(list(inputs), CHECK_TOKENS)]
        executed = calibrate_(model, few, macs=budget.target, counter=counter)
    except Exception:  # leave the model as it was
        ungate_(model)
        raise
    of_factors = {site.source for site in sites if site.factors}
    two = [site for site in sites if len(site.producers) == 2]
    without = sum(not of_factors & {*site.producers} for site in two)
    notes = [
        f"{len(sites)} thresholds on what feed-forward layers read",
        *([f"{without} of {len(two)} gated ones have none on factors: {WHY_NO_FACTORS}"] if without else []),
        f"the model executes {executed:.3f} of the dense MACs before training, where one row runs at a time",
    ]
    return ConversionPlan(budget, rate, {}, notes)


def _bound_counter(model: nn.Module, budget: Budget, inputs: Sequence[Inputs]) -> MacCounter:
    """What the budget counts with from now on."""
    counter = count_macs(model, move(take_first(inputs[0], 1), next(model.parameters()).device))
    budget.bind(counter)
    return counter


def _shared(rate: float, blocks: Sequence[int]) -> float:
    """The fraction of blocks that stay open if nobody says how many; none where, rounded up, they would be more than
    twice the most that should, or all that `rate` pays for at a site."""
    fraction = min(SHARED_OF_OPEN * rate, SHARED_AT_MOST)
    shares = [count_of(fraction, count) / count for count in blocks]
    return fraction if all(share < rate and share <= 2 * SHARED_AT_MOST for share in shares) else 0.0


def _start(model: nn.Module, budget: Budget, counter: MacCounter, inputs: Sequence[Inputs], start: str) -> str:
    """Open all gates if asked for, or bring the model down to its budget; says what it executes before training."""
    device = next(model.parameters()).device
    few = [move(x, device) for x in read_batches(list(inputs), CHECK_TOKENS)]
    done = f"after opening all gates by a shift of {open_all_(model, few):.2f} logits, " if start == "open" else ""
    executed = executed_relative(model, counter, few)
    if start == "budget" and executed > budget.target + WITHIN:
        # Sites with few blocks, or with a smaller last one, cannot open exactly the rate that the budget pays for.
        done = f"after calibration, because the gates as fitted execute {executed:.3f}, "
        executed = calibrate_(model, few, macs=budget.target, counter=counter)
    return f"{done}the model executes {executed:.3f} of the dense MACs before training"


@torch.no_grad()
def open_all_(model: nn.Module, inputs: Sequence[Inputs]) -> float:
    """Raise the logits of all gates by one amount, so that every block is open on `inputs`; returns the amount.

    One amount for all: lowering it again, as a budget does, brings every gate back to where it was.
    """
    gates = named_gates(model)
    shift = 0.0
    for gate, logits in ((gates[name], found) for name, found in observe_logits(model, gates, inputs).items()):
        lacking = float(gate.logit_threshold) - float(logits.min()) + MARGIN * float(gate.tau)
        shift = max(shift, lacking)
    for gate in gates.values():
        gate.bias.add_(shift)
    return shift
