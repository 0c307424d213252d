"""Where the hard gates stand against a budget, and the small last shift that makes them meet it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from dynamicgate.cost import Ledger, deployed
from dynamicgate.gate import Gate
from dynamicgate.trace import evaluating
from dynamicgate.usage import gates_of, unwrap, usage


def cut(gate: Gate) -> Tensor:
    """tau * logit(theta): the logit above which the gate opens. Log it: tau and theta move it together."""
    return gate.tau * torch.logit(gate.theta)


@torch.no_grad()
def executed_relative(model: nn.Module, ledger: Ledger, inputs: Iterable[Tensor]) -> float:
    """Executed MACs relative to dense over `inputs`, hard gates, evaluation mode."""
    total, rows = 0.0, 0
    with evaluating(model):
        for x in inputs:
            with usage(unwrap(model)) as used:
                model(x)
            total += float(ledger.relative(deployed(ledger, used))) * len(x)
            rows += len(x)
    return total / rows


@torch.no_grad()
def shift_biases_(model: nn.Module, ledger: Ledger, target: float, inputs: list[Tensor], rounds: int) -> float:
    """Find by bisection the one shift of all logits with which the model executes `target`; returns what it executes.

    The biases move, not the thresholds: logits may be large, and a threshold on their sigmoid cannot tell 20 from 30.
    """
    gates = gates_of(model)
    before = {name: gate.bias.detach().clone() for name, gate in gates.items()}

    def relative_at(shift: float) -> float:
        for name, gate in gates.items():
            gate.bias.copy_(before[name] - shift)
        return executed_relative(model, ledger, inputs)

    now = relative_at(0.0)
    found = [(abs(now - target), 0.0)]
    reach = 1.0
    while reach < 1e4 and not relative_at(reach) <= target <= relative_at(-reach):
        reach *= 4.0
    low, high = -reach, reach
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        relative = relative_at(middle)
        found.append((abs(relative - target), middle))
        low, high = (middle, high) if relative > target else (low, middle)
    return relative_at(min(found, key=lambda f: (f[0], abs(f[1])))[1])


def check_reachable(target: float, floor: float, ledger: Ledger) -> None:
    """A budget below the fixed costs is an error now, not a surprise after training."""
    for name, gate in ledger.gates.items():
        if gate.config.top_k is not None or gate.config.evaluate == "soft":
            reason = "opens exactly top_k blocks" if gate.config.top_k is not None else "is evaluated softly"
            raise ValueError(f"a budget with a target steers hard thresholds, but the gate at {name!r} {reason}")
    least = ledger.relative_at(max(floor, 1e-9))
    if target < least:
        raise ValueError(
            f"a budget of {target} cannot be met: the gate networks alone cost {ledger.gate / ledger.dense:.3f} of "
            f"dense, and with all gates at their floor of {floor} the model executes {least:.3f}. Ask for more, or "
            "make the gates cheaper (larger block, net='low-rank' with a smaller rank, kind='static')"
        )
