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
from dynamicgate.inference.cpu.find import Step, steps_of, trace
from dynamicgate.nn.ffn import unwatched
from dynamicgate.ops.ffn.tune import DTYPES


@dataclass(frozen=True)
class Pair:
    """The layers around gated hidden units."""

    gate: Gate
    names: tuple[str, ...]
    """Of up, value if there is one, and down, in the model."""
    up: nn.Linear
    value: nn.Linear | None
    down: nn.Linear
    activation: str
    nodes: tuple[str, ...]
    """That it replaces, in the graph of its room."""


@dataclass(frozen=True)
class Room:
    """A module that is rewritten, and what becomes of it."""

    name: str
    graph: fx.Graph
    pairs: list[Pair]


def find_pairs(model: nn.Module, gates: Mapping[str, Gate]) -> tuple[list[Room], dict[str, str]]:
    """The modules with gated feed-forward layers, and by site why the others stay as they are."""
    why = {name: reason for name, gate in gates.items() if (reason := _cannot(gate))}
    names = {name: _room_of(model, gate) for name, gate in gates.items() if name not in why}
    graphs: dict[str, fx.Graph] = {}
    for room in sorted(
        dict.fromkeys(names.values()), key=len
    ):  # an outer module first: its graph has the inner ones in it
        if _around(room, graphs) is None:
            try:
                graphs[room] = _traced(model.get_submodule(room))
            except ValueError as error:
                why |= {site: f"{room or 'the model'}: {error}" for site, found in names.items() if found == room}
    pairs: dict[str, list[Pair]] = {room: [] for room in graphs}
    for site, name in names.items():
        around = _around(name, graphs)
        if around is not None:
            try:
                pairs[around].append(_match(model.get_submodule(around), graphs[around], around, gates[site]))
            except ValueError as error:
                why[site] = str(error)
    return [Room(room, graphs[room], found) for room, found in pairs.items() if found], why


def _cannot(gate: Gate) -> str | None:
    config = gate.config
    if gate.site.is_input:
        return "it decides about input features"
    if config.reads == "same":
        return "it reads the units it closes (reads='same')"
    if config.evaluate == "soft":
        return "it is evaluated softly and closes nothing"
    if config.capacity is not None:
        return "its experts have a capacity, which depends on the other rows; only open ones are computed all the same"
    return None


def _room_of(model: nn.Module, gate: Gate) -> str:
    """The smallest module around the layers of a site that has a forward pass of its own."""
    paths = [name.split(".")[:-1] for name in (*gate.site.producers, gate.site.consumer)]
    shared = 0
    while all(len(path) > shared and path[shared] == paths[0][shared] for path in paths):
        shared += 1
    while isinstance(model.get_submodule(".".join(paths[0][:shared])), nn.ModuleList | nn.ModuleDict):
        shared -= 1
    return ".".join(paths[0][:shared])


def _around(name: str, rooms: Mapping[str, object]) -> str | None:
    return next((room for room in rooms if not room or name == room or name.startswith(f"{room}.")), None)


def _traced(module: nn.Module) -> fx.Graph:
    if module._forward_hooks or module._forward_pre_hooks:
        raise ValueError("it has a hook of its own")
    return trace(module)


def _match(room: nn.Module, graph: fx.Graph, name: str, gate: Gate) -> Pair:
    """The layers of `gate` in the graph; ValueError where something else lies between them."""
    prefix = f"{name}." if name else ""
    steps = {step.node: step for step in steps_of(room, graph)}
    reads = [n for n in graph.nodes if n.op == "call_module" and f"{prefix}{n.target}" == gate.site.consumer]
    if len(reads) != 1 or reads[0] not in steps:
        raise ValueError("its layers are not plain Linear layers that run once in a forward pass")
    walked: list[fx.Node] = [reads[0]]
    node = _skip_nothing(reads[0].all_input_nodes[0], steps, walked)
    if node.target in (operator.mul, torch.mul, "mul") and len(node.all_input_nodes) == 2:
        walked.append(node)
        sides = [_writer(_skip_nothing(n, steps, walked), steps, walked) for n in node.all_input_nodes]
        plain = next((i for i in (1, 0) if sides[i][1] == "identity"), None)
        if plain is None:
            raise ValueError("both factors of its units have an activation")
        (up, activation), value = sides[1 - plain], sides[plain][0]
    else:
        (up, activation), value = _writer(node, steps, walked), None
    linears = [up, *([value] if value else []), steps[reads[0]]]
    names = tuple(prefix + step.name for step in linears)
    if {*names[:-1]} != {*gate.site.producers} or gate.site.source not in names[:-1]:
        raise ValueError("its units are written elsewhere than where they are decided")
    if len({step.node.all_input_nodes[0] for step in linears[:-1]}) != 1:
        raise ValueError("the layers that write its units read different things")
    if any(len(n.users) != 1 for n in walked[1:]):
        raise ValueError("something else reads its units too")
    if not all(unwatched(step.module, gate) for step in linears):  # type: ignore[arg-type]
        raise ValueError("another gate acts on its layers, which cannot decide once they are one")
    if activation not in IN_TRITON:
        raise ValueError(f"there are kernels for {', '.join(IN_TRITON)}, its activation is {activation}")
    dtypes = {step.module.weight.dtype for step in linears}  # type: ignore[union-attr]
    if len(dtypes) != 1 or not dtypes <= {*DTYPES}:
        raise ValueError(f"there are kernels for {', '.join(map(str, DTYPES))}, its weights are {dtypes}")
    order = {n: i for i, n in enumerate(graph.nodes)}
    nodes = tuple(n.name for n in sorted(walked, key=lambda n: order[n]))
    modules: list[Any] = [up.module, value.module if value else None, steps[reads[0]].module]
    return Pair(gate, names, modules[0], modules[1], modules[2], activation, nodes)


def _skip_nothing(node: fx.Node, steps: Mapping[fx.Node, Step], walked: list[fx.Node]) -> fx.Node:
    while node in steps and steps[node].kind == "nothing":
        walked.append(node)
        node = node.all_input_nodes[0]
    return node


def _writer(node: fx.Node, steps: Mapping[fx.Node, Step], walked: list[fx.Node]) -> tuple[Step, str]:
    """The Linear behind `node`, and the activation between them."""
    activation = "identity"
    for step in _back(node, steps):
        walked.append(step.node)
        if step.kind == "linear":
            return step, activation
        if step.kind == "activation" and activation == "identity":
            activation = step.activation
        elif step.kind != "nothing":
            break
    raise ValueError("between its layers lies more than an activation")


def _back(node: fx.Node, steps: Mapping[fx.Node, Step]) -> Iterator[Step]:
    while node in steps:
        yield steps[node]
        node = node.all_input_nodes[0]
