"""Which parts of a model are gated feed-forward layers: up, activation, down, and perhaps a value projection beside up.

Only the smallest module around such a layer is traced, so that what surrounds it (attention, loops) may be anything.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from dynamicgate.activations import IN_TRITON
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.sites import Site
from dynamicgate.inference.graph import Step, steps_of, trace
from dynamicgate.inference.profiling import CLOSED_CHANNELS
from dynamicgate.nn.ffn import unwatched
from dynamicgate.ops.ffn.tune import DTYPES


@dataclass(frozen=True)
class GatedFFN:
    """The layers around gated hidden units."""

    gate: Gate
    names: tuple[str, ...]
    """The names of `linears` in the model."""
    up: nn.Linear
    value: nn.Linear | None
    down: nn.Linear
    activation: str
    nodes: tuple[str, ...]
    """The nodes that it replaces, in the graph of its `TracedModule`."""

    @property
    def linears(self) -> list[nn.Linear]:
        """up, value if there is one, and down."""
        return [linear for linear in (self.up, self.value, self.down) if linear is not None]

    @property
    def dense_bytes(self) -> int:
        """The memory of weights and biases."""
        return sum(t.numel() * t.element_size() for linear in self.linears for t in linear.parameters(recurse=False))


@dataclass(frozen=True)
class TracedModule:
    """A module that is rewritten, and the feed-forward layers found in its graph."""

    name: str
    graph: fx.Graph
    ffns: list[GatedFFN]


def find_ffns(model: nn.Module, gates: Mapping[str, Gate]) -> tuple[list[TracedModule], dict[str, str]]:
    """The modules with gated feed-forward layers, and by site why the other gates stay in torch."""
    sites = {name: gate.site_at(name) for name, gate in gates.items()}
    reasons = {name: reason for name, gate in gates.items() if (reason := unsupported(gate))}
    names = {name: _module_around(model, sites[name]) for name in gates if name not in reasons}
    graphs: dict[str, fx.Graph] = {}
    for module in sorted(dict.fromkeys(names.values()), key=len):  # outer modules first: their graphs hold inner ones
        if _enclosing(module, graphs) is None:
            try:
                graphs[module] = _traced(model.get_submodule(module))
            except ValueError as error:
                reasons |= {
                    site: f"{module or 'the model'}: {error}" for site, found in names.items() if found == module
                }
    ffns: dict[str, list[GatedFFN]] = {module: [] for module in graphs}
    for site, name in names.items():
        around = _enclosing(name, graphs)
        if around is not None:
            try:
                ffns[around].append(
                    _match(model.get_submodule(around), graphs[around], around, gates[site], sites[site])
                )
            except ValueError as error:
                reasons[site] = str(error)
    return [TracedModule(module, graphs[module], found) for module, found in ffns.items() if found], reasons


def unsupported(gate: Gate) -> str | None:
    """Why no feed-forward kernel can take over from this gate; None if one can."""
    config = gate.config
    if gate.site.channels:
        return f"it closes channels of convolutions, which run dense: {CLOSED_CHANNELS}"
    if gate.site.is_input:
        return "it decides about input features"
    if config.reads == "same":
        return "it reads the units it closes (reads='same')"
    if config.evaluate == "soft":
        return "it is evaluated softly and closes nothing"
    if config.kind == "context":
        return "it names a context by its nearest prototype, which no kernel does"
    if config.capacity is not None:
        return "its experts have a capacity, which depends on the other rows; only open ones are computed all the same"
    return None


def _module_around(model: nn.Module, site: Site) -> str:
    """The name of the smallest module around the layers of a site that has a forward pass of its own."""
    paths = [name.split(".")[:-1] for name in (*site.producers, site.consumer)]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    while isinstance(model.get_submodule(".".join(paths[0][:shared])), nn.ModuleList | nn.ModuleDict):
        shared -= 1
    return ".".join(paths[0][:shared])


def _enclosing(name: str, modules: Mapping[str, object]) -> str | None:
    return next((module for module in modules if not module or name == module or name.startswith(f"{module}.")), None)


def _traced(module: nn.Module) -> fx.Graph:
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError("it has a hook of its own")
    return trace(module)


def _match(module: nn.Module, graph: fx.Graph, name: str, gate: Gate, site: Site) -> GatedFFN:
    """The layers of `gate` in the graph of `module`; ValueError if there is something else between them."""
    prefix = f"{name}." if name else ""
    steps = {step.node: step for step in steps_of(module, graph)}
    reads = [n for n in graph.nodes if n.op == "call_module" and f"{prefix}{n.target}" == site.consumer]
    if len(reads) != 1 or reads[0] not in steps:
        raise ValueError("its layers are not plain Linear layers that run once in a forward pass")
    visited: list[fx.Node] = [reads[0]]
    node = _skip_nothing(reads[0].all_input_nodes[0], steps, visited)
    if node.target in (operator.mul, torch.mul, "mul") and len(node.all_input_nodes) == 2:
        visited.append(node)
        sides = [_producer(_skip_nothing(n, steps, visited), steps, visited) for n in node.all_input_nodes]
        plain = next((i for i in (1, 0) if sides[i][1] == "identity"), None)
        if plain is None:
            raise ValueError("both factors of its units have an activation")
        (up, activation), value = sides[1 - plain], sides[plain][0]
    else:
        (up, activation), value = _producer(node, steps, visited), None
    linears = [up, *([value] if value else []), steps[reads[0]]]
    names = tuple(prefix + step.name for step in linears)
    if {*names[:-1]} != {*site.producers} or site.source not in names[:-1]:
        raise ValueError("its units are computed by other layers than the one that decides about them")
    if len({step.node.all_input_nodes[0] for step in linears[:-1]}) != 1:
        raise ValueError("the layers that compute its units read different inputs")
    if any(len(n.users) != 1 for n in visited[1:]):
        raise ValueError("something else reads its units too")
    if not all(unwatched(step.module, gate) for step in linears):  # type: ignore[arg-type]
        raise ValueError("another gate acts on its layers, and could not decide once they run as one")
    if activation not in IN_TRITON:
        raise ValueError(f"there are kernels for {', '.join(IN_TRITON)}, its activation is {activation}")
    dtypes = {step.module.weight.dtype for step in linears}  # type: ignore[union-attr]
    if len(dtypes) != 1 or not dtypes <= {*DTYPES}:
        raise ValueError(f"there are kernels for {', '.join(map(str, DTYPES))}, its weights are {dtypes}")
    order = {n: i for i, n in enumerate(graph.nodes)}
    nodes = tuple(n.name for n in sorted(visited, key=lambda n: order[n]))
    modules: list[Any] = [up.module, value.module if value else None, steps[reads[0]].module]
    return GatedFFN(gate, names, modules[0], modules[1], modules[2], activation, nodes)


def _skip_nothing(node: fx.Node, steps: Mapping[fx.Node, Step], visited: list[fx.Node]) -> fx.Node:
    """The first node from `node` backwards that does something."""
    while node in steps and steps[node].kind == "nothing":
        visited.append(node)
        node = node.all_input_nodes[0]
    return node


def _producer(node: fx.Node, steps: Mapping[fx.Node, Step], visited: list[fx.Node]) -> tuple[Step, str]:
    """The Linear from `node` backwards, and the activation after it."""
    activation = "identity"
    for step in _backwards(node, steps):
        visited.append(step.node)
        if step.kind == "linear":
            return step, activation
        if step.kind == "activation" and activation == "identity":
            activation = step.activation
        elif step.kind != "nothing":
            break
    raise ValueError("there is more than an activation between its layers")


def _backwards(node: fx.Node, steps: Mapping[fx.Node, Step]) -> Iterator[Step]:
    while node in steps:
        yield steps[node]
        node = node.all_input_nodes[0]
