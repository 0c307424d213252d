"""Put gates on a model, in place, and take them off again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatch

from torch import nn

from dynamicgate.gating.gate import Gate, GateConfig
from dynamicgate.gating.integrations import structure_changed
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.sites import Site, find_sites, gives_output
from dynamicgate.gating.stages import STAGES, attach_stages, detach_stages, new_stages, stages_of
from dynamicgate.gating.units_in_stages import check_fits, check_fits_at, keep_order_
from dynamicgate.gating.where import hidden

Where = Callable[[Site], bool] | str | Iterable["str | Site"]


def gate_(model: nn.Module, config: GateConfig | None = None, where: Where = hidden) -> nn.Module:
    """Put a gate on every site that `where` selects, in place, and return the model.

    `where` is a predicate on `Site` (`hidden`, `inputs`, `everywhere` or your own), a site name or glob, or a list of
    names, globs and explicit `Site` objects (for a forward pass that cannot be traced). Base parameters keep their
    names and values; only keys that contain ``.gate.`` are new (``.stages.``, and masks, for stages). Call it again
    with another `where` for another kind.
    """
    config = config or GateConfig()
    chosen = _select(model, where)
    taken = named_gates(model)
    if config.kind == "stages":
        _add_stages(model, chosen, config)
        structure_changed(model)
        return model
    for site in chosen:
        if site.name in taken:
            raise ValueError(
                f"{site.name!r} already has a gate; take it off with ungate_ first, or leave it out of `where`"
            )
    for site in chosen:
        check_fits(model, site, config)
    for site in chosen:
        _attach(model, site, config)
    structure_changed(model)
    return model


def ungate_(model: nn.Module, where: Where | None = None) -> nn.Module:
    """Take off the gates that `where` selects (all by default; "stages" for the stage gate alone), in place, and return
    the model."""
    if where is None or where == STAGES:
        detach_stages(model)
        if where == STAGES:
            return model
    gates = named_gates(model)
    sites = [gate.site_at(name) for name, gate in gates.items()]
    chosen = sites if where is None else _matching(sites, where)
    for site in chosen:
        gate = gates[site.name]
        for name in (site.source, site.consumer):
            _remove_hooks(model.get_submodule(name), gate)
        del model.get_submodule(site.consumer).gate
    structure_changed(model)
    return model


def _add_stages(model: nn.Module, chosen: list[Site], config: GateConfig) -> None:
    if stages_of(model) is not None:
        raise ValueError("this model has stages already; take them off with ungate_(model, 'stages') first")
    sites = _stack(chosen)
    if not gives_output(model, sites[-1].consumer):
        raise ValueError(
            f"stages decide from the outputs of the model, and {sites[-1].consumer!r}, the last layer of the stack, "
            "does not give them: include the sites up to the output layer, or put the rest of the model in front"
        )
    gates = {name: gate for name, gate in named_gates(model).items() if name in {site.name for site in sites}}
    stages = new_stages(model, sites, config)
    for position, site in enumerate(sites):
        if site.name in gates:  # before anything changes: weights that would read a later stage are lost
            check_fits_at(stages, position, site, gates[site.name].config)
    attach_stages(model, stages)
    for name, gate in gates.items():
        keep_order_(model, name, gate)


def _stack(chosen: list[Site]) -> list[Site]:
    """The sites in the order of the forward pass; an error unless each feeds the next."""
    hidden_sites = [site for site in chosen if not site.is_input]
    by_producer = {site.producers: site for site in hidden_sites}
    read = {(site.consumer,) for site in hidden_sites}
    first = [site for site in hidden_sites if site.producers not in read]
    stack = first[:1]
    while stack and (stack[-1].consumer,) in by_producer:
        stack.append(by_producer[(stack[-1].consumer,)])
    if not stack or len(stack) != len(hidden_sites) or any(len(site.producers) != 1 for site in stack):
        listed = ", ".join(str(site) for site in hidden_sites) or "none"
        raise ValueError(
            f"stages need one stack of Linear layers in which each reads the units of the one before; the sites are "
            f"{listed}. Choose those of one stack with where="
        )
    return stack


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
    consumer.register_forward_pre_hook(gate.scale_before, prepend=True)
    source.register_forward_pre_hook(gate.decide_before, prepend=source is consumer)
    keep_order_(model, site.name, gate)


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
