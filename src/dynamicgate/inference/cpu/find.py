"""Which parts of a model can be a chain: maximal runs of Linear layers with only unit-wise work between them.

A gate acts through hooks on the layers at both ends of its site, so either all of them become part of one chain or none
does. What stays outside a chain runs in torch as before, hooks and all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS, of_call, of_module
from dynamicgate.gating.gate import Gate
from dynamicgate.nn import Normalize, Switch
from dynamicgate.nn.switch import PassThrough

Kind = Literal["linear", "activation", "affine", "layer norm", "nothing"]
ZEROS_WORTH_SKIPPING = 0.25  # below this share of exact zeros, taking them out costs what it saves


@dataclass(frozen=True)
class Step:
    """One node of the traced model, as far as a chain can do its work."""

    node: fx.Node
    kind: Kind
    name: str
    module: nn.Module | None = None
    activation: str = "identity"


@dataclass(frozen=True)
class Path:
    """Steps that become one chain, in order."""

    steps: tuple[Step, ...]

    @property
    def linears(self) -> list[Step]:
        """Its Linear layers."""
        return [step for step in self.steps if step.kind == "linear"]

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [step.node.name for step in self.steps]


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look inside a module only if there is a Linear to find. Not into experts with a capacity: which rows they
        leave unserved is decided while they run."""
        gate = getattr(m.down, "gate", None) if isinstance(m, Switch) else None
        if isinstance(gate, Gate) and gate.config.capacity is not None:
            return True
        known = isinstance(m, nn.Linear | nn.MultiheadAttention)
        return known or not any(isinstance(child, nn.Linear) for child in m.modules())


class _Shapes(fx.Interpreter):
    """Runs the traced model and notes, for every value, its dimensions and its share of exact zeros."""

    def run_node(self, n: fx.Node) -> Any:
        """Run and look."""
        out = super().run_node(n)
        if isinstance(out, Tensor):
            n.meta.update(ndim=out.ndim, zeros=float((out == 0).double().mean()) if out.numel() else 0.0)
        return out


def trace(model: nn.Module) -> fx.Graph:
    """The data flow of `model`. Raises ValueError where the forward pass cannot be followed."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # fx raises whatever the traced forward raises on a symbolic value
        raise ValueError(f"its forward pass cannot be traced ({type(error).__name__}: {error})") from error
    if sum(node.op == "placeholder" for node in graph.nodes) != 1:
        raise ValueError("its forward pass takes more than one input")
    modules = dict(model.named_modules())
    for node in list(graph.nodes):
        if _passes_on(node, modules):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
    return graph


def look(model: nn.Module, graph: fx.Graph, example: Tensor) -> None:
    """Note the dimensions and zeros of every value of `graph` on `example`."""
    with torch.no_grad():
        _Shapes(fx.GraphModule(model, graph)).run(example)


def find_paths(model: nn.Module, graph: fx.Graph, gates: Mapping[str, Gate]) -> tuple[list[Path], dict[str, str]]:
    """The chains of a traced model, and why each of the other Linear layers stays in torch."""
    steps = {step.node: step for step in steps_of(model, graph)}
    why = dict(_cannot(model, graph))
    starts = {gate.site.producers[0] for gate in gates.values() if gate.config.kind == "router" and gate.site.producers}
    while True:
        paths = list(_paths(graph, steps, set(why), starts))
        broken = [(gate, reason) for gate in gates.values() if (reason := _gate_breaks(gate, paths, set(why)))]
        for gate, reason in broken:
            for name in (*gate.site.producers, gate.site.source, gate.site.consumer):
                why.setdefault(name, reason)
        if not broken:
            return paths, why


def _paths(graph: fx.Graph, steps: Mapping[fx.Node, Step], pinned: set[str], starts: set[str]) -> Iterator[Path]:
    taken: set[fx.Node] = set()
    for node in graph.nodes:
        step = steps.get(node)
        if step is None or step.kind != "linear" or step.name in pinned or node in taken:
            continue
        found = [*_before(step, steps, taken), step, *_after(step, steps, pinned | starts, taken)]
        taken.update(s.node for s in found)
        yield Path(tuple(found))


def _before(first: Step, steps: Mapping[fx.Node, Step], taken: set[fx.Node]) -> list[Step]:
    found: list[Step] = []
    node = first.node.all_input_nodes[0]
    while (step := steps.get(node)) is not None and node not in taken and len(node.users) == 1:
        if step.kind not in ("affine", "nothing", "layer norm"):
            break
        if step.kind == "layer norm" and node.all_input_nodes[0].meta.get("zeros", 0.0) < ZEROS_WORTH_SKIPPING:
            break  # torch does it in one pass; only exact zeros of its input are worth the other way
        found.insert(0, step)
        if step.kind == "layer norm":
            break
        node = node.all_input_nodes[0]
    return found


def _after(first: Step, steps: Mapping[fx.Node, Step], barred: set[str], taken: set[fx.Node]) -> list[Step]:
    found: list[Step] = []
    pending: list[Step] = []  # behind the last Linear; all of it belongs to the chain only if another Linear follows
    foldable = 0  # how many of them the last Linear can do itself
    node, activated, shifted = first.node, False, False
    while len(node.users) == 1:
        step = steps.get(next(iter(node.users)))
        if step is None or step.node in taken or step.kind == "layer norm":
            break
        if step.kind == "linear":
            if step.name in barred:
                break
            found += [*pending, step]
            pending, foldable, activated, shifted = [], 0, False, False
        else:
            if step.kind == "activation" and (activated or shifted):
                break
            activated = activated or step.kind == "activation"
            shifted = shifted or (activated and step.kind == "affine")
            pending.append(step)
            foldable = foldable if shifted else len(pending)
        node = step.node
    return found + pending[:foldable]


def steps_of(model: nn.Module, graph: fx.Graph) -> Iterator[Step]:
    """The nodes whose work is known."""
    modules = dict(model.named_modules())
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            module = modules[name]
            kind, activation = _kind_of_module(module, node)
        elif node.op in ("call_function", "call_method") and node.all_input_nodes:
            module = None
            kind, activation = _kind_of_call(node)
        else:
            continue
        if kind is not None and len(node.all_input_nodes) == 1:
            yield Step(node, kind, name, module, activation)


def _kind_of_module(module: nn.Module, node: fx.Node) -> tuple[Kind | None, str]:
    kind: Kind | None = None
    activation = of_module(module) or "identity"
    match module:
        case nn.Linear():
            kind = "linear"
        case nn.Identity() | nn.Dropout():
            kind = "nothing"
        case Normalize():
            kind = "affine" if module.mean.ndim <= 1 and module.std.ndim <= 1 else None
        case nn.BatchNorm1d() if module.track_running_stats:
            kind = "affine" if node.meta.get("ndim") == 2 else None
        case nn.LayerNorm():
            kind = "layer norm" if len(module.normalized_shape) == 1 else None
        case _ if of_module(module):
            kind = "activation"
    return (kind, activation) if _is_itself(module) else (None, activation)


def _kind_of_call(node: fx.Node) -> tuple[Kind | None, str]:
    activation = of_call(node.target, node.kwargs)
    if activation is not None:
        return "activation", activation
    if node.target is F.dropout and not node.kwargs.get("training", True):
        return "nothing", "identity"
    return None, "identity"


def _is_itself(module: nn.Module) -> bool:
    """Whether the module computes what its class is known to compute: no subclass, no hook that is not a gate's."""
    activations = (activation.module for activation in ACTIVATIONS.values())
    known = (nn.Linear, nn.Dropout, Normalize, nn.BatchNorm1d, nn.LayerNorm, *activations)
    foreign = [h for h in module._forward_pre_hooks.values() if not isinstance(getattr(h, "__self__", None), Gate)]
    return type(module) in known and not foreign and not module._forward_hooks


def _cannot(model: nn.Module, graph: fx.Graph) -> Iterator[tuple[str, str]]:
    modules = dict(model.named_modules())
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    for name, count in calls.items():
        module = modules[name]
        if not isinstance(module, nn.Linear):
            continue
        if count > 1 or sum(m is module for m in modules.values()) > 1:
            yield name, "it runs more than once in a forward pass"
        elif not _is_itself(module):
            yield name, "it is a subclass of Linear or has a hook of its own"
        elif (module.weight.dtype, module.weight.device.type) != (torch.float32, "cpu"):
            yield name, f"the kernels are float32 on the cpu, it is {module.weight.dtype} on {module.weight.device}"


def _gate_breaks(gate: Gate, paths: list[Path], pinned: set[str]) -> str | None:
    """Why the layers around a gate cannot become part of a chain; None where they can, or where they already stay."""
    site, config = gate.site, gate.config
    members = {*site.producers, site.source, site.consumer}
    if members <= pinned:
        return None
    if config.capacity is not None:
        return f"the experts of {site.name!r} have a capacity, which depends on the other rows of the batch"
    place = next(((p, i) for p in paths for i, s in enumerate(p.linears) if s.name == site.consumer), None)
    if place is None:
        return f"the gate of {site.name!r} holds it to a layer that stays in torch"
    path, index = place
    if config.kind == "static" and site.is_input:
        return None if index == 0 else f"the gate of {site.name!r} is on features that a chain makes"
    if site.is_input:
        return f"the gate of {site.name!r} decides about input features for each input"
    if index == 0 or site.producers != (path.linears[index - 1].name,):
        return f"between the layers of the gate of {site.name!r} lies what no chain can do"
    if config.kind == "static":
        return None
    if site.source != site.producers[0]:
        return f"the gate of {site.name!r} reads the units it closes (reads='same')"
    if _shifted_before(path, site.consumer):
        return f"the units of {site.name!r} are shifted between activation and gate"
    return None


def _shifted_before(path: Path, consumer: str) -> bool:
    between: list[Step] = []
    for step in path.steps:
        if step.kind == "linear":
            if step.name == consumer:
                break
            between = []
        else:
            between.append(step)
    kinds = [step.kind for step in between]
    return "activation" in kinds and "affine" in kinds[kinds.index("activation") :]


def _passes_on(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """A Switch without a capacity (others are not looked into) serves every row: nothing passes it by."""
    return node.op == "call_module" and isinstance(modules[str(node.target)], PassThrough) and node.args[2] is None
