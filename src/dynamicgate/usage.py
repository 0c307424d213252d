"""Usage: the evidence of a forward pass, p and g for each site, alive only inside a `with` (sec 3.3, 4.1(1))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dynamicgate.gate import Decision, Gate


class Usage(Mapping[str, Decision]):
    """Decisions by site name. Several forward passes inside one `with` are put one after the other."""

    def __init__(self, sites: list[str]) -> None:
        """Empty evidence for `sites`."""
        self._calls: dict[str, list[Decision]] = {site: [] for site in sites}

    def __call__(self, gate: Gate, decision: Decision) -> None:
        """Called by each gate as it decides."""
        self._calls[gate.site.name].append(decision)

    def __getitem__(self, site: str) -> Decision:
        calls = self._calls[site]
        if not calls:
            raise ValueError(f"no forward pass reached the gate at {site!r} inside this `with dynamicgate.usage(...)`")
        if len(calls) == 1:
            return calls[0]
        return Decision(*(torch.cat([c.flatten(0, -2) for c in column]) for column in zip(*calls, strict=True)))

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def mean_p(self) -> dict[str, Tensor]:
        """Mean probability of each site, differentiable: the paper's rho (sec 3.3(1))."""
        return {site: self[site].p_BG.mean() for site in self}

    def mean_g(self) -> dict[str, Tensor]:
        """Mean hard open rate of each site, as deployed."""
        return {site: self[site].g_BG.mean() for site in self}


def gates_of(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model by site name, in module order."""
    return {m.site.name: m for m in model.modules() if isinstance(m, Gate)}


@contextmanager
def usage(model: nn.Module) -> Iterator[Usage]:
    """Record what every gate of `model` decides inside the block.

    >>> with usage(model) as used:
    ...     loss = F.cross_entropy(model(x), y)
    >>> used["2"].g_BG
    """
    gates = gates_of(model)
    if not gates:
        raise ValueError("this model has no gates; put some on with dynamicgate.gate_(model, GateConfig(...))")
    used = Usage(list(gates))
    before = {name: gate.watcher for name, gate in gates.items()}
    try:
        for gate in gates.values():
            gate.watcher = used
        yield used
    finally:
        for name, gate in gates.items():
            gate.watcher = before[name]
