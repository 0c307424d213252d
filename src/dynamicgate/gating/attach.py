"""Put gates on a model, in place, and take them off again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatch
from typing import Any

from torch import nn

from dynamicgate.distributed import rank
from dynamicgate.gating.factors import check_activation, check_one_writer
from dynamicgate.gating.gate import Gate, GateConfig
from dynamicgate.gating.integrations import structure_changed
from dynamicgate.gating.patterns import describe, find_matches, is_word
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.site_layers import check_kind, check_layers, features_read
from dynamicgate.gating.sites import Site, find_sites, gives_output, why_not_sites
from dynamicgate.gating.stages import STAGES, attach_stages, detach_stages, new_stages, stages_of
from dynamicgate.gating.units_in_stages import check_fits, check_fits_at, keep_order_
from dynamicgate.gating.where import hidden
from dynamicgate.gating.wrapping import gate_hooks
from dynamicgate.linears import unwrapped

Where = Callable[[Site], bool] | str | Iterable["str | Site"]


def gate_(model: nn.Module, config: GateConfig | None = None, where: Where = hidden) -> nn.Module:
    """Put a gate on every site that `where` selects, in place, and return the model.

    `where` is a predicate on `Site` (`hidden`, `channels`, `inputs`, `everywhere` or your own), "mlp" for the
    feed-forward layers of a Transformer, "mlp-inputs" for everything that their layers read, "mlp-all" for that and
    the factors of gated linear units, "heads" for its attention heads, a site name or glob, or a list of names, globs
    and explicit `Site` objects (for a forward pass that cannot be traced). For these words a line is printed that says
    what was found; `dynamicgate.gating.patterns` says how. Base parameters keep their names and values; only keys that
    contain ``.gate.`` are new (``.stages.``, and masks, for stages). Call it again with another `where` for another
    kind.
    """
    config = config or GateConfig()
    where = where if callable(where) or isinstance(where, str) else list(where)
    chosen = select_sites(model, where)
    taken = named_gates(model)
    if config.kind == "stages":
        _add_stages(model, _without_channels(chosen, where), config)
        structure_changed(model)
        return model
    for site in chosen:
        if site.name in taken:
            raise ValueError(
                f"{site.name!r} already has a gate; take it off with ungate_ first, or leave it out of `where`"
            )
    for site in chosen:
        check_kind(site, config)
        check_layers(model, site)
        if site.factors:
            check_activation(model, site)
        check_fits(model, site, config)
    gates = [_new_gate(model, site, config) for site in chosen]
    check_one_writer({**taken, **{gate.site.name: gate for gate in gates}})
    for gate in gates:
        _attach(model, gate)
    structure_changed(model)
    found = [match for word in _words(where) for match in find_matches(model, word)]
    if found and rank() == 0:
        print(describe(found, config))
    return model


def ungate_(model: nn.Module, where: Where | None = None) -> nn.Module:
    """Take off the gates that `where` selects (all by default; "stages" for the stage gate alone; otherwise as in
    `gate_`), in place, and return the model."""
    if where is None or where == STAGES:
        detach_stages(model)
        if where == STAGES:
            return model
    gates = named_gates(model)
    sites = [gate.site_at(name) for name, gate in gates.items()]
    chosen = sites if where is None else _matching(sites, _without_words(model, sites, where))
    for site in chosen:
        gate = gates[site.name]
        for name in (site.source, site.consumer):
            _remove_hooks(model.get_submodule(name), gate)
        del unwrapped(model.get_submodule(site.consumer)).gate
    structure_changed(model)
    return model


def select_sites(model: nn.Module, where: Where) -> list[Site]:
    """The sites of `model` that `where` selects, each once; see `gate_`."""
    if callable(where):
        return _matching(find_sites(model), where, model)
    items = [where] if isinstance(where, str) else list(where)
    found = [match.site for word in _words(items) for match in find_matches(model, word)]
    rest = [item for item in items if not is_word(item)]
    explicit = [item for item in rest if isinstance(item, Site)]
    named = len(explicit) < len(rest) or not items
    found += _matching(find_sites(model), rest, model) if named else explicit
    return list({site.name: site for site in reversed(found)}.values())[::-1]


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


def _without_channels(chosen: list[Site], where: Where) -> list[Site]:
    """The sites that stages can divide. A predicate means those among its sites; named channels are an error."""
    channels = [site for site in chosen if site.channels]
    left = [site for site in chosen if not site.channels]
    if channels and (not callable(where) or not left):
        raise ValueError(
            f"stages divide stacks of Linear layers, and the site {channels[0]} has channels of convolutions, which "
            "have no stages: choose Linear layers with where=, or take kind='dynamic' or 'static' for the channels"
        )
    return left


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


def _new_gate(model: nn.Module, site: Site, config: GateConfig) -> Gate:
    if config.reads == "same" and not site.factors:
        site = replace(site, source=site.consumer)
    reader = site.source if site.factors else site.consumer  # an activation has no weights
    consumer, source = (unwrapped(model.get_submodule(name)) for name in (reader, site.source))
    weights: list[Any] = [consumer.weight, source.weight]
    gate = Gate(site, config, features=features_read(source, site)).to(weights[0].device)
    gate.net.to(weights[1].dtype)  # it reads what the source reads; tau and theta stay float32
    return gate.train(consumer.training)


def _attach(model: nn.Module, gate: Gate) -> None:
    """Make the gate a child of the layer itself, and put its hooks on what the model calls: an adapter, if there is one
    around the layer, so that its own branches see gated units too."""
    site = gate.site
    consumer, source = model.get_submodule(site.consumer), model.get_submodule(site.source)
    unwrapped(consumer).gate = gate
    if site.factors:
        gate.put_hook_after_(consumer, gate.cut_after)
        return
    # Applying a gate comes first: where one layer is the consumer of one site and the source of the next, the second
    # gate must read h^(l-1) as gated (sec 3). Bound methods, because deepcopy re-binds them to the copied gate.
    gate.put_hook_(consumer, gate.scale_before, prepend=True)
    gate.put_hook_(source, gate.decide_before, prepend=source is consumer)
    keep_order_(model, site.name, gate)


def _remove_hooks(module: nn.Module, gate: Gate) -> None:
    for key, hook in gate_hooks(module).items():
        if hook.__self__ is gate:
            del module._forward_pre_hooks[key]
    for key, hook in [*module._forward_hooks.items()]:  # of factors
        if getattr(hook, "__self__", None) is gate:
            del module._forward_hooks[key]


def _without_words(model: nn.Module, sites: list[Site], where: Where) -> Where:
    """`where` with the names of gated `sites` in place of a word."""
    if callable(where):
        return where
    items: list[str | Site] = []
    for item in [where] if isinstance(where, str) else where:
        named = {match.site.name for match in find_matches(model, item)} if is_word(item) else set()
        items += [site.name for site in sites if site.name in named] or [item]
    return items


def _words(where: Where) -> list[str]:
    """Those of its items that name patterns."""
    if callable(where):
        return []
    return [item for item in ([where] if isinstance(where, str) else where) if is_word(item)]


def _matching(sites: list[Site], where: Where, model: nn.Module | None = None) -> list[Site]:
    if callable(where):
        chosen = [site for site in sites if where(site)]
    else:
        patterns = [where] if isinstance(where, str) else list(where)
        explicit = [item for item in patterns if isinstance(item, Site)]
        globs = [item for item in patterns if isinstance(item, str)]
        for pattern in globs:
            if not any(fnmatch(site.name, pattern) for site in sites):
                raise ValueError(_nothing_matched(pattern, sites, model))
        chosen = explicit + [site for site in sites if any(fnmatch(site.name, pattern) for pattern in globs)]
    if not chosen:
        raise ValueError(_nothing_matched(getattr(where, "__name__", repr(where)), sites, model))
    return chosen


def _nothing_matched(where: str, sites: list[Site], model: nn.Module | None) -> str:
    reasons = [] if model is None else why_not_sites(model)
    because = "".join(f"\n  {reason}" for reason in reasons)
    if not sites:
        between = f" What lies between:{because}\n" if because else " "
        return (
            f"`where` ({where}) matches nothing: no Linear layer or convolution in this model feeds another one "
            f"through unit-wise operations alone.{between}Describe the site yourself: "
            "where=[Site(consumer=..., producers=(...), source=..., width=...)]"
        )
    listed = "\n  ".join(str(site) for site in sites)
    others = f"\nNot sites:{because}" if because else ""
    return f"`where` ({where}) matches none of the sites of this model. Candidates:\n  {listed}{others}"
