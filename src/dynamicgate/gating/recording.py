"""Usage: the evidence of a forward pass, p and g for each site, alive only inside a `with` (sec 3.3, 4.1(1))."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Decision, Gate
from dynamicgate.gating.sites import Site
from dynamicgate.modules import unwrap


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
        return {site: self[site].p.mean() for site in self}

    def mean_g(self) -> dict[str, Tensor]:
        """Mean hard open rate of each site, as deployed."""
        return {site: self[site].open.mean() for site in self}


def named_gates(model: nn.Module) -> dict[str, Gate]:
    """The gates of a model by site name, in module order.

    Sites are named as `model` sees them: a module that brought its gates along when it was put into another (a `Switch`
    in a Sequential) has them under its new path.
    """
    found = {}
    for path, module in unwrap(model).named_modules():
        if isinstance(module, Gate):
            module.site = _moved(module.site, path.removesuffix("gate").removesuffix("."))
            found[module.site.name] = module
    return found


@contextmanager
def usage(model: nn.Module) -> Iterator[Usage]:
    """Record what every gate of `model` decides inside the block.

    >>> with usage(model) as used:
    ...     loss = F.cross_entropy(model(x), y)
    >>> used["2"].open
    """
    gates = named_gates(model)
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


def _moved(site: Site, consumer: str) -> Site:
    """`site` with the prefix of all its names exchanged for the one under which its consumer is found now."""
    was, now = site.consumer.split("."), consumer.split(".")
    shared = len([*takewhile(lambda pair: pair[0] == pair[1], zip(was[::-1], now[::-1], strict=False))])
    old, new = was[: len(was) - shared], now[: len(now) - shared]
    names = [name.split(".") for name in (*site.producers, site.source)]
    if old == new or not shared or any(name[: len(old)] != old for name in names):
        return site  # where it was; or renamed, or seen from inside, in a way that does not tell the other names
    *producers, source = (".".join(new + name[len(old) :]) for name in names)
    return replace(site, consumer=consumer, producers=tuple(producers), source=source)
