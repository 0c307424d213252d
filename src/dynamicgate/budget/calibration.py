"""What hard gates execute, whether a target can be reached, and the small last shift that meets it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from statistics import stdev
from typing import Any

import torch
from torch import nn

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.accounting.shape_counters import COUNTED_SAMPLES, ShapeCounters
from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget.stage_cut import calibrate_stages_
from dynamicgate.data.by_name import batches_by_name
from dynamicgate.data.contract import Inputs, call, count_samples, move, take_first
from dynamicgate.data.schema import schema_of
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import is_gated, named_gates, usage
from dynamicgate.modules import evaluating

FIRST_SHIFT, FARTHEST = 0.25, 1e4  # logits
CALIBRATION_BATCH = 2048
NEAR = 5e-4  # of the target: what other inputs execute differs by more
LEAST, SHOWN = 0.01, 4  # of the dense MACs, and how many: layers that an error names


def executed_relative(model: nn.Module, counter: MacCounter, inputs: Iterable[Inputs]) -> float:
    """Executed MACs relative to dense over `inputs`, hard gates, evaluation mode. Batches of another shape than that of
    the counter's example are counted with their own."""
    return _executed_relative(model, ShapeCounters(model, counter), inputs)


@torch.no_grad()
def _executed_relative(model: nn.Module, counters: ShapeCounters, inputs: Iterable[Inputs]) -> float:
    executed = dense = 0.0
    with evaluating(model):
        for x in inputs:
            with usage(model) as used:
                call(model, x)
            counter = counters.counter_for(x).at(used.work)
            samples = count_samples(x)
            executed += float(counter.relative(deployed(counter.gates, used))) * counter.dense * samples
            dense += counter.dense * samples
    return executed / dense


def executed_error(model: nn.Module, counter: MacCounter, inputs: Iterable[Inputs]) -> float:
    """Standard error of what rows execute on average, relative to dense, from how far batches of them lie apart; of
    less than two batches it is infinite."""
    found = [executed_relative(model, counter, [x]) for x in inputs]
    return stdev(found) / math.sqrt(len(found)) if len(found) > 1 else math.inf


def calibrate_(
    model: nn.Module,
    data: Any,
    *,
    macs: float,
    counter: MacCounter | None = None,
    rounds: int = 24,
    keep: Collection[str] = (),
) -> float:
    """Make a trained model execute `macs` of the dense MACs on average over `data`, without training; returns what it
    then executes.

    With stages the cut moves: one model can be put anywhere on the curve that `measure` draws. Otherwise the logits of
    all gates are shifted by one amount.

    data: inputs that are not used for testing, see `dynamicgate.data.contract`; targets are not needed. A model that
        carries a schema finds columns of DataFrames and genes of AnnData by name.
    counter: from `count_macs(model, example)`; None counts `data`. Batches of another shape are counted with their own.
    rounds: of the search for the shift.
    keep: sites whose gates stay as they are.
    """
    if not 0.0 < macs <= 1.0:
        raise ValueError(f"macs is a fraction of the dense MACs: expected 0 < macs <= 1, received {macs}")
    if not is_gated(model):
        raise ValueError("calibration moves gates, and this model has none: call dynamicgate.gate_(model, ...) first")
    device = next(model.parameters()).device
    named = batches_by_name(data, schema_of(model), CALIBRATION_BATCH, targets=False)
    inputs = [move(x, device) for x, _ in named.batches]
    if not inputs:
        raise ValueError("nothing to calibrate on: the dataset is empty")
    counter = counter or count_macs(model, take_first(inputs[0], COUNTED_SAMPLES))
    if counter.stages is not None:
        return calibrate_stages_(model, counter, macs, inputs)
    check_steerable(counter.gates)
    return shift_biases_(model, counter, macs, inputs, rounds, keep)


@torch.no_grad()
def shift_biases_(
    model: nn.Module,
    counter: MacCounter,
    target: float,
    inputs: list[Inputs],
    rounds: int,
    keep: Collection[str] = (),
) -> float:
    """Search for the one shift of all logits, except those of `keep`, with which the model executes `target`; returns
    what it executes.

    The biases move, not the thresholds: logits may be large, and a threshold on their sigmoid cannot tell 20 from 30.
    """
    gates = {name: gate for name, gate in named_gates(model).items() if name not in keep}
    before = {name: gate.bias.detach().clone() for name, gate in gates.items()}
    counters = ShapeCounters(model, counter)
    excess: dict[float, float] = {}  # of every shift that was tried

    def shift_(by: float) -> None:
        for name, gate in gates.items():
            gate.bias.copy_(before[name] - by)

    def too_much(shift: float) -> bool:
        shift_(shift)
        excess[shift] = _executed_relative(model, counters, inputs) - target
        return excess[shift] > 0.0

    towards = 1.0 if too_much(0.0) else -1.0
    low, high = 0.0, towards * FIRST_SHIFT  # training has left little to do
    while abs(excess[low]) > NEAR * target and abs(high) < FARTHEST and too_much(high) == (towards > 0.0):
        low, high = high, 4.0 * high
    for round_ in range(rounds if high in excess else 0):
        if min(map(abs, excess.values())) <= NEAR * target:
            break
        # every other time where a straight line crosses the target: nearly right if many gates lie between both ends
        fraction = 0.5 if round_ % 2 else excess[low] / (excess[low] - excess[high])
        middle = low + (high - low) * min(max(fraction, 0.05), 0.95)
        low, high = (middle, high) if too_much(middle) == (towards > 0.0) else (low, middle)
    best = min(excess, key=lambda shift: (abs(excess[shift]), abs(shift)))
    shift_(best)
    return target + excess[best]


def check_steerable(gates: Mapping[str, Gate]) -> None:
    """An error for gates that no bias can open or close."""
    for name, gate in gates.items():
        if gate.config.top_k is not None or gate.config.evaluate == "soft":
            reason = "opens exactly top_k blocks" if gate.config.top_k is not None else "is evaluated softly"
            raise ValueError(f"a budget with a target steers hard thresholds, but the gate at {name!r} {reason}")


def check_reachable(target: float, floor: float, counter: MacCounter) -> None:
    """A budget below the fixed costs is an error now, not a surprise after training."""
    check_steerable(counter.gates)
    least = counter.relative_at(max(floor, 1e-9))
    if target < least:
        text = (
            f"a budget of {target} cannot be met: the gate networks alone cost {counter.gate / counter.dense:.3f} of "
            f"dense, and with all gates at their floor of {floor} the model executes {least:.3f}."
        )
        fixed = counter.always_executed
        if sum(fixed.values()) > counter.gate:  # cheaper gates would not help
            most = [
                f"{name!r} {macs / counter.dense:.3f}" for name, macs in fixed.items() if macs > LEAST * counter.dense
            ]
            named = ", ".join(most[:SHOWN]) + (f" and {len(most) - SHOWN} more" if len(most) > SHOWN else "")
            raise ValueError(
                f"{text} Layers that no gate closes hold it back: {named}. Ask for more, gate them (find_sites says "
                "where that can be), or make them smaller"
            )
        raise ValueError(
            f"{text} Ask for more, or make the gates cheaper (larger block, net='low-rank' with a smaller rank, "
            "kind='static')"
        )
