"""Let a trained model skip what is small: thresholds on all that its feed-forward layers read, without gate networks.

A layer adds up its inputs, each times a column of weights, and inputs near zero hardly change the sum. Where one row is
computed at a time, as in decoding, their columns need not be read. In a gated linear unit, a factor near zero makes its
unit small, so that the row of the other layer that it multiplies need not be read either.

Shapes in names: B tokens, N units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter
from dynamicgate.accounting.rates import largest_rate
from dynamicgate.data.contract import Inputs
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.networks import SMALLEST
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site
from dynamicgate.hf.activity import between, observe
from dynamicgate.hf.initial_gates import QUANTILE_TOKENS
from dynamicgate.training.progress import Progress

# Hidden units are products with an activation, and far more of them are near zero than of what enters a layer. On
# SmolLM2 the loss was least, and flat, where this many of them are open for each input that is. With thresholds on the
# factors too it was least where as many factors are open as inputs, with more hidden units, and with more inputs of the
# layer whose outputs are multiplied: the rate to the power of one half.
HIDDEN_FOR_EACH_INPUT, HIDDEN_BEHIND_FACTORS = 0.6, 0.7
POWER_FOR_MULTIPLIED = 0.5
NOT_ZERO = 0.5 * math.log(100.0 * SMALLEST)  # of factors that are smaller nobody knows what they multiply


@torch.no_grad()
def put_thresholds_(
    model: nn.Module, counter: MacCounter, target: float, inputs: Sequence[Inputs], show: bool
) -> float:
    """Put the thresholds of all magnitude gates where the model executes about `target` of the dense MACs, as if gates
    did not change what later layers read. Returns the rate at which the inputs of a layer are open that nothing
    multiplies; others have more or less."""
    gates = named_gates(model)
    sites = {name: gate.site_at(name) for name, gate in gates.items()}
    rates_at = _rates(sites)
    rate = _rate_at(counter, gates, rates_at, target)
    open_at = rates_at(rate)
    found: dict[str, list[Tensor]] = {name: [] for name in gates}

    def see(site: Any, _x: Tensor, h_BN: Tensor) -> None:
        room = QUANTILE_TOKENS - sum(map(len, found[site.name]))
        if room > 0:
            gate = gates[site.name]
            found[site.name].append((gate.net(h_BN[:room]) - gate.bias).float().cpu())

    with Progress("putting thresholds", show=show) as progress:
        observe(model, [*sites.values()], inputs, see, between(progress, 0.0, 1.0))
    for name, empty in found.items():
        if not empty:
            raise ValueError(f"no batch reached the gate at {name!r}: pass other batches")
    sizes = {name: torch.cat(rows) for name, rows in found.items()}  # logarithms
    for name, gate in gates.items():
        shift_G = torch.zeros(gate.blocks)
        hidden = _hidden_behind(sites[name], sites)
        if hidden is not None:
            # how large what they multiply is on average: with that for large factors alone, SmolLM2 lost a third more
            shift_G = _mean_square(sizes[hidden] - sizes[name], sizes[name] > NOT_ZERO)
        ordered = (sizes[name] + shift_G).flatten().sort(descending=True).values
        place = min(round(open_at[name] * len(ordered)), len(ordered) - 1)
        gate.bias.copy_(float(gate.logit_threshold) - float(ordered[place]) + shift_G)
    return rate


def _mean_square(sizes_BG: Tensor, known_BG: Tensor) -> Tensor:
    """The logarithm of the root mean square over tokens of what has these logarithms, as far as they are known; of a
    column without any, the mean of the others."""
    total_G = torch.logsumexp((2.0 * sizes_BG).masked_fill(~known_BG, -torch.inf), dim=0)
    found_G = 0.5 * (total_G - known_BG.sum(0).log())
    return torch.where(known_BG.any(0), found_G, found_G.nanmean().nan_to_num(0.0))


def _hidden_behind(site: Site, sites: Mapping[str, Site]) -> str | None:
    """The site of the hidden units that are these factors times what they multiply; None if there is none, or these are
    no factors."""
    if not site.factors:
        return None
    return next((name for name, other in sites.items() if not other.factors and site.source in other.producers), None)


def _rates(sites: Mapping[str, Site]) -> Callable[[float], dict[str, float]]:
    """How many units of each site are open, where so many of the inputs are that nothing multiplies."""
    multiplied = {name for site in sites.values() if site.factors for name in site.producers}

    def rule(site: Site) -> tuple[float, float]:
        if site.is_input:
            return 1.0, POWER_FOR_MULTIPLIED if site.name in multiplied else 1.0
        if site.factors:
            return 1.0, 1.0
        return HIDDEN_BEHIND_FACTORS if multiplied & {*site.producers} else HIDDEN_FOR_EACH_INPUT, 1.0

    rules = {name: rule(site) for name, site in sites.items()}
    return lambda rate: {name: share * rate**power for name, (share, power) in rules.items()}


def _rate_at(
    counter: MacCounter, gates: Mapping[str, Gate], rates_at: Callable[[float], Mapping[str, float]], target: float
) -> float:
    """The open rate of inputs at which the model executes `target`."""

    def relative(rate: float) -> float:
        exact = torch.float64  # float32 cannot hold the MACs of a large model
        open_at = rates_at(rate)
        return float(
            counter.relative({n: torch.full((1, g.blocks), open_at[n], dtype=exact) for n, g in gates.items()})
        )

    return largest_rate(relative, target)
