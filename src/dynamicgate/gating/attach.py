"""Put gates on a model, in place, and take them off again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatch

from torch import nn

from dynamicgate.gating.gate import Gate, GateConfig
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site, find_sites
from dynamicgate.gating.where import hidden

Where = Callable[[Site], bool] | str | Iterable["str | Site"]


def gate_(model: nn.Module, config: GateConfig | None = None, where: Where = hidden) -> nn.Module:
    """Put a gate on every site that `where` selects, in place, and return the model.

    `where` is a predicate on `Site` (`hidden`, `inputs`, `everywhere` or your own), a site name or glob, or a list of
    names, globs and explicit `Site` objects (for a forward pass that cannot be traced). Base parameters keep their
    names and values; only keys that contain ``.gate.`` are new. Call it again with another `where` for another kind.
    """
    config = config or GateConfig()
    chosen = _select(model, where)
    taken = named_gates(model)
    for site in chosen:
        if site.name in taken:
            raise ValueError(
                f"{site.name!r} already has a gate; take it off with ungate_ first, or leave it out of `where`"
            )
    for site in chosen:
        _attach(model, site, config)
    return model


def ungate_(model: nn.Module, where: Where | None = None) -> nn.Module:
    """Take off the gates that `where` selects (all by default), in place, and return the model."""
    gates = named_gates(model)
    sites = [gate.site_at(name) for name, gate in gates.items()]
    chosen = sites if where is None else _matching(sites, where)
    for site in chosen:
        gate = gates[site.name]
        for name in (site.source, site.consumer):
            _remove_hooks(model.get_submodule(name), gate)
        del model.get_submodule(site.consumer).gate
    return model


def _attach(model: nn.Module, site: Site, config: GateConfig) -> None:
    consumer = model.get_submodule(site.consumer)
    source = consumer if config.reads == "same" else model.get_submodule(site.source)
    if not isinstance(consumer, nn.Linear) or not isinstance(source, nn.Linear):
        raise ValueError(f"a gate reads and closes units in front of nn.Linear layers; the site is {site}")
    if site.width != consumer.in_features:
        raise ValueError(f"the site says {site.width} units, but {site.consumer!r} reads {consumer.in_features}")
    if source is consumer:
        site = Site(site.consumer, site.producers, site.consumer, site.width)
    gate = Gate(site, config, features=source.in_features).to(consumer.weight.device)
    gate.net.to(source.weight.dtype)  # it reads what the source reads; tau and theta stay float32
    gate.train(consumer.training)
    consumer.gate = gate
    # Applying a gate comes first: where one layer is the consumer of one site and the source of the next, the second
    # gate must read h^(l-1) as gated (sec 3). Bound methods, because deepcopy re-binds them to the copied gate.
    consumer.register_forward_pre_hook(gate.close_before, prepend=True)
    source.register_forward_pre_hook(gate.decide_before, prepend=source is consumer)


def _remove_hooks(module: nn.Module, gate: Gate) -> None:
    hooks = module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is gate]:
        del hooks[key]


def _select(model: nn.Module, where: Where) -> list[Site]:
    if not callable(where) and not isinstance(where, str):
        where = list(where)
        explicit = [item for item in where if isinstance(item, Site)]
        if explicit and len(explicit) == len(where):
            return explicit
    return _matching(find_sites(model), where)


def _matching(sites: list[Site], where: Where) -> list[Site]:
    if callable(where):
        chosen = [site for site in sites if where(site)]
    else:
        patterns = [where] if isinstance(where, str) else list(where)
        explicit = [item for item in patterns if isinstance(item, Site)]
        globs = [item for item in patterns if isinstance(item, str)]
        for pattern in globs:
            if not any(fnmatch(site.name, pattern) for site in sites):
                raise ValueError(_nothing_matched(pattern, sites))
        chosen = explicit + [site for site in sites if any(fnmatch(site.name, pattern) for pattern in globs)]
    if not chosen:
        raise ValueError(_nothing_matched(getattr(where, "__name__", repr(where)), sites))
    return chosen


def _nothing_matched(where: str, sites: list[Site]) -> str:
    if not sites:
        return (
            f"`where` ({where}) matches nothing: no Linear layer in this model feeds another one through unit-wise "
            "operations alone. Describe the site yourself: "
            "where=[Site(consumer=..., producers=(...), source=..., width=...)]"
        )
    listed = "\n  ".join(str(site) for site in sites)
    return f"`where` ({where}) matches none of the sites of this model. Candidates:\n  {listed}"
