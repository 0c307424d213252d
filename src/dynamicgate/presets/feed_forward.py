"""Gates in the feed-forward layers of a Transformer, from a budget alone: the recipe of docs/language-models.md.

Open blocks compete by a softmax, as experts do. The most probable ones are always open, three quarters of what the
budget pays for, and each token opens as many more as it needs; a penalty balances their load. Training starts with
about as many open blocks as the budget pays for in the end: it costs what inference costs from the first step on.
"""

from __future__ import annotations

from torch import nn

from dynamicgate.accounting.rates import open_rate_at
from dynamicgate.accounting.tracing import count_macs
from dynamicgate.budget import Budget
from dynamicgate.data.contract import Inputs
from dynamicgate.gating.attach import gate_, select_sites, ungate_
from dynamicgate.gating.gate import GateConfig
from dynamicgate.gating.patterns import known_matches
from dynamicgate.gating.sites import Site

BLOCK, LEAST_BLOCKS = 128, 16  # units that open together; fewer in layers that would have too few blocks to choose from
WARMUP, RAMP, BALANCE = 0.01, 0.01, 0.1
ALWAYS_OPEN = 0.75  # of the blocks that the budget pays for
RARE, EVEN = (0.05, 0.33), (0.5, 0.5)  # fraction of blocks open at first, and the `open` that gives it


def is_transformer(model: nn.Module) -> bool:
    """Whether gates belong in the feed-forward layers: they write what they read, and there is attention or there are
    tokens."""
    sites = [match.site for match in known_matches(model, "mlp")]
    if not sites or not all(_writes_what_it_reads(model, site) for site in sites):
        return False
    kinds = (nn.Embedding, nn.MultiheadAttention)
    return any(isinstance(m, kinds) or "Attention" in type(m).__name__ for m in model.modules())


def gate_feed_forward_(model: nn.Module, macs: float, example: Inputs) -> Budget:
    """Put gates on all feed-forward layers; what steers them. macs: executed MACs relative to the dense model."""
    sites = select_sites(model, "mlp")
    block = min(BLOCK, max(1, min(site.width for site in sites) // LEAST_BLOCKS))
    gate_(model, _config(block, EVEN[1], 1), sites)
    try:
        rate = open_rate_at(count_macs(model, example), macs)
        ungate_(model)
        blocks = min(-(-site.width // block) for site in sites)
        config = _config(block, start_of(rate), always_open(rate, blocks))
        gate_(model, config, sites)  # with what the gates themselves cost taken off
        counter = count_macs(model, example)
        budget = Budget(target=macs, warmup=WARMUP, anneal=RAMP, balance=BALANCE)
        budget.bind(counter)
    except ValueError:  # leave the model as it was
        ungate_(model)
        raise
    return budget


def start_of(rate: float) -> float:
    """The probability of being open to start with, so that about this fraction of the blocks is open at first: on the
    line through two rates that were measured, and at least nearly closed."""
    slope = (EVEN[1] - RARE[1]) / (EVEN[0] - RARE[0])
    return min(0.9, RARE[1] + slope * (rate - RARE[0]))


def always_open(rate: float, blocks: int) -> int:
    """How many blocks are open for every token, where the budget pays for this fraction of them: at least one."""
    return max(1, min(round(ALWAYS_OPEN * rate * blocks), int(rate * blocks)))


def _config(block: int, start: float, floor: int) -> GateConfig:
    return GateConfig(block=block, net="linear", scale="softmax", open=start, always_open=floor)


def _writes_what_it_reads(model: nn.Module, site: Site) -> bool:
    up, down = model.get_submodule(site.source), model.get_submodule(site.consumer)
    return bool(getattr(up, "in_features", -1) == getattr(down, "out_features", -2))
