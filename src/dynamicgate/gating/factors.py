"""Factors of gated linear units: which activation gives them, and which layer writes what they multiply.

Names and shapes do not tell: `down(act(gate(x) * up(x)))` has the same layers and no factors. So the forward pass of
the module is read, and where it cannot be, nothing is taken for factors.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import fx, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.sites import Site
from dynamicgate.gating.unit_wise import passes_units
from dynamicgate.linears import is_linear

PRODUCTS = (operator.mul, torch.mul, "mul")


class Factors(NamedTuple):
    """Modules by their names below the one around them: activation(source(x)) * producer(x)."""

    activation: str
    source: str
    producer: str


def factor_site(model: nn.Module, hidden: Site) -> Site | None:
    """The factors that these hidden units are products with; None if there are none, or their activation is no module
    of its own, as where layers share one."""
    prefixes = {name.rpartition(".")[0] for name in hidden.producers}
    if len(hidden.producers) != 2 or len(prefixes) != 1:
        return None
    (prefix,) = prefixes
    first, second = (name.rpartition(".")[2] for name in hidden.producers)
    found = _factors_below(model.get_submodule(prefix), (first, second))
    if found is None:
        return None
    activation, source, producer = (f"{prefix}.{name}" if prefix else name for name in found)
    if len(paths_of(model, activation)) > 1:
        return None
    return Site(activation, (producer,), source, hidden.width, factors=True)


def paths_of(model: nn.Module, name: str) -> list[str]:
    """All names of a module."""
    module = model.get_submodule(name)
    return [path for path, other in model.named_modules(remove_duplicate=False) if other is module]


def check_activation(model: nn.Module, site: Site) -> None:
    """An error for a site of factors whose consumer is no activation, or not one of its own."""
    activation = model.get_submodule(site.consumer)
    if any(is_linear(m) or isinstance(m, nn.Conv2d) for m in activation.modules()):
        raise ValueError(
            f"factors are what an activation gives: expected the name of an activation behind {site.source!r} as the "
            f"consumer, and {site.consumer!r} is a {type(activation).__name__}"
        )
    if len(paths := paths_of(model, site.consumer)) > 1:
        raise ValueError(
            f"{' and '.join(map(repr, paths))} are one activation, and a gate on its factors would cut those of all: "
            "give each layer an activation of its own"
        )


def check_one_writer(gates: Mapping[str, Gate]) -> None:
    """An error where another gate saves the rows that a gate on factors saves: nobody could count them."""
    sites = {name: gate.site_at(name) for name, gate in gates.items()}
    for name, factors in sites.items():
        for other, gate in gates.items() if factors.factors else ():
            if other != name and gate.saves_producers and {*factors.producers} & {*sites[other].producers}:
                raise ValueError(
                    f"the gates at {name!r} and {other!r} would both save rows of {', '.join(factors.producers)}: keep "
                    "the factors, or a gate on the hidden units that decides before they are computed, not both"
                )


def _factors_below(module: nn.Module, layers: tuple[str, str]) -> Factors | None:
    """The factors between two layers below a module whose outputs are multiplied, one of them behind an activation that
    nothing else reads or runs."""
    try:
        graph = _Calls().trace(module)
    except Exception:  # fx raises whatever the traced forward raises on a symbolic value
        return None
    modules = dict(module.named_modules())
    called = Counter(node.target for node in graph.nodes if node.op == "call_module")
    for product in graph.nodes:
        if product.target not in PRODUCTS or len(product.all_input_nodes) != 2:
            continue
        for given, other in (product.all_input_nodes, product.all_input_nodes[::-1]):
            if len(given.all_input_nodes) != 1 or len(given.users) != 1 or called[given.target] != 1:
                continue
            source = given.all_input_nodes[0]
            are_calls = all(node.op == "call_module" for node in (given, source, other))
            if are_calls and {source.target, other.target} == {*layers} and _is_activation(given, modules):
                return Factors(str(given.target), str(source.target), str(other.target))
    return None


def _is_activation(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return passes_units(node, modules) and not isinstance(modules[str(node.target)], nn.Dropout | nn.BatchNorm1d)


class _Calls(fx.Tracer):
    def is_leaf_module(self, _m: nn.Module, _name: str) -> bool:
        """Only the forward pass of the module itself is read."""
        return True
