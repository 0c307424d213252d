"""How the cost of a sample changes with its length: linear layers with tokens, attention with query-key pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from dynamicgate.gating.work import Work


class Costs(NamedTuple):
    """What one sample costs, as `MacCounter` takes it."""

    rows: dict[str, float]
    other: float
    attention: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """The cost of a token and of a pair, found by `count_macs` in one forward pass; it can be written as JSON."""

    calls: Mapping[str, Mapping[str, int]]
    """By linear layer: how often it runs for a token of each stream."""
    fixed_rows: Mapping[str, float] = field(default_factory=dict)
    """By linear layer: rows for a sample that do not depend on its tokens, in a pooling layer for example."""
    other: Mapping[str, float] = field(default_factory=dict)
    """By stream: MACs of a token in what is neither linear layer nor attention; experts for example."""
    fixed_other: float = 0.0
    """The same for a sample, whatever its length; a convolution on an image for example."""
    pairs: Mapping[str, float] = field(default_factory=dict)
    """By attention layer: MACs of one pair of query and key with all heads open, scores and mixing."""
    heads: Mapping[str, str] = field(default_factory=dict)
    """By site of gated heads: its attention layer."""

    one_length: bool = False
    """Whether something else changes with the length of a sample, in a way that one example does not show: it is then
    counted again for each length, and scaled for padding only."""

    def costs(self, work: Work) -> Costs:
        """What the mean sample of `work` costs."""
        samples = max(1, work.samples)
        rows = dict(self.fixed_rows)
        for layer, streams in self.calls.items():
            rows[layer] = rows.get(layer, 0.0) + sum(n * work.tokens.get(s, 0.0) for s, n in streams.items()) / samples
        macs = {name: each * work.pairs[name] / samples for name, each in self.pairs.items() if name in work.pairs}
        attention = {site: macs.get(name, 0.0) for site, name in self.heads.items()}
        gated = {*self.heads.values()}
        other = self.fixed_other + sum(each * work.tokens.get(s, 0.0) for s, each in self.other.items()) / samples
        return Costs(rows, other + sum(found for name, found in macs.items() if name not in gated), attention)
