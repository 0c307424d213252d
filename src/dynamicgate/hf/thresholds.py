"""Let a trained model skip what is small: thresholds on all that its feed-forward layers read, without gate networks.

A layer adds up its inputs, each times a column of weights, and inputs near zero hardly change the sum. Where one row is
computed at a time, as in decoding, their columns need not be read.

Shapes in names: B tokens, N units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.rates import largest_rate
from dynamicgate.data.contract import Inputs
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.hf.activity import between, observe
from dynamicgate.hf.initial_gates import QUANTILE_TOKENS
from dynamicgate.training.progress import Progress

# Hidden units are products with an activation, and far more of them are near zero than of what enters a layer. On
# SmolLM2 the loss was least, and flat, where this many of them are open for each input that is.
HIDDEN_FOR_EACH_INPUT = 0.6


@torch.no_grad()
def put_thresholds_(
    model: nn.Module, counter: MacCounter, target: float, inputs: Sequence[Inputs], show: bool
) -> float:
    """Put the thresholds of all magnitude gates where the model executes about `target` of the dense MACs, as if gates
    did not change what later layers read. Returns the rate at which input gates are open; hidden ones have less."""
    gates = named_gates(model)
    rate = _rate_at(counter, gates, target)
    found: dict[str, list[Tensor]] = {name: [] for name in gates}
    sites = [gate.site_at(name) for name, gate in gates.items()]

    def see(site: Any, _x: Tensor, h_BN: Tensor) -> None:
        room = QUANTILE_TOKENS - sum(map(len, found[site.name]))
        if room > 0:
            gate = gates[site.name]
            found[site.name].append((gate.net(h_BN[:room]) - gate.bias).float().cpu())

    with Progress("putting thresholds", show=show) as progress:
        observe(model, sites, inputs, see, between(progress, 0.0, 1.0))
    for name, gate in gates.items():
        if not found[name]:
            raise ValueError(f"no batch reached the gate at {name!r}: pass other batches")
        sizes = torch.cat(found[name]).flatten().sort(descending=True).values
        place = min(round(_rate_of(gate, rate) * len(sizes)), len(sizes) - 1)
        gate.bias.fill_(float(gate.logit_threshold) - float(sizes[place]))
    return rate


def _rate_of(gate: Gate, rate: float) -> float:
    return rate if gate.site.is_input else HIDDEN_FOR_EACH_INPUT * rate


def _rate_at(counter: MacCounter, gates: Mapping[str, Gate], target: float) -> float:
    """The open rate of input gates at which the model executes `target`."""

    def relative(rate: float) -> float:
        exact = torch.float64  # float32 cannot hold the MACs of a large model
        return float(
            counter.relative({n: torch.full((1, g.blocks), _rate_of(g, rate), dtype=exact) for n, g in gates.items()})
        )

    return largest_rate(relative, target)
