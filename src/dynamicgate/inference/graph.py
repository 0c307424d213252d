"""The traced graph of a model: the nodes whose work is known, and how a run of nodes is replaced by one module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import fx, nn
from torch.nn import functional as F

from dynamicgate.activations import of_call, of_module
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.stages import StageGate
from dynamicgate.nn import Normalize, Switch
from dynamicgate.nn.switch import ResidualFallback

Kind = Literal["linear", "activation", "affine", "layer norm", "nothing"]


@dataclass(frozen=True)
class Step:
    """One node of a traced model whose work is known."""

    node: fx.Node
    kind: Kind
    name: str
    module: nn.Module | None = None
    activation: str = "identity"


class _Tracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Trace into a module only if it contains a Linear. Never into experts with a capacity: which rows they drop is
        decided while they run."""
        gate = getattr(m.down, "gate", None) if isinstance(m, Switch) else None
        if isinstance(gate, Gate) and gate.config.capacity is not None:
            return True
        known = isinstance(m, nn.Linear | nn.Conv2d | nn.MultiheadAttention)  # a Conv2d may have a gate as a child
        return known or not any(isinstance(child, nn.Linear) for child in m.modules())


def trace(model: nn.Module) -> fx.Graph:
    """The graph of `model`. Raises ValueError if its forward pass cannot be traced."""
    try:
        graph = _Tracer().trace(model)
    except Exception as error:  # fx raises whatever the traced forward raises on a symbolic value
        raise ValueError(f"its forward pass cannot be traced ({type(error).__name__}: {error})") from error
    if sum(node.op == "placeholder" for node in graph.nodes) != 1:
        raise ValueError("its forward pass takes more than one input")
    modules = dict(model.named_modules())
    for node in list(graph.nodes):
        if _passes_nothing_through(node, modules):
            node.replace_all_uses_with(node.args[1])
            graph.erase_node(node)
    return graph


def steps_of(model: nn.Module, graph: fx.Graph, stages: StageGate | None = None) -> Iterator[Step]:
    """The nodes whose work is known, in order. stages: a gate whose hooks on layers the caller takes care of."""
    modules = dict(model.named_modules())
    for node in graph.nodes:
        name = str(node.target)
        if node.op == "call_module" and len(node.args) == 1 and not node.kwargs:
            module = modules[name]
            kind, activation = _kind_of_module(module, node, stages)
        elif node.op in ("call_function", "call_method") and node.all_input_nodes:
            module = None
            kind, activation = _kind_of_call(node)
        else:
            continue
        if kind is not None and len(node.all_input_nodes) == 1:
            yield Step(node, kind, name, module, activation)


def is_unmodified(module: nn.Module, stages: StageGate | None = None) -> bool:
    """Whether the module computes what its class is known to compute: no subclass, no forward of its own, and no hook
    except a gate's, or one of `stages`."""
    if "forward" in vars(module):
        return False
    known = type(module) in (nn.Linear, nn.Dropout, Normalize, nn.BatchNorm1d, nn.LayerNorm)
    before = [getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values()]
    after = [getattr(hook, "__self__", None) for hook in module._forward_hooks.values()]
    foreign = [owner for owner in before if not isinstance(owner, Gate)] + after
    unmodified = all(stages is not None and owner is stages for owner in foreign)
    return unmodified and (known or of_module(module) is not None)


def replace_nodes(
    model: nn.Module, graph: fx.Graph, nodes: Sequence[Sequence[str]], modules: Sequence[nn.Module]
) -> nn.Module:
    """`model` with every run of `nodes` replaced by one of `modules`; that module alone if nothing else is left."""
    by_name = {node.name: node for node in graph.nodes}
    unknown = [name for names in nodes for name in names if name not in by_name]
    if unknown:
        raise ValueError(f"the plan was made for another model: this one has no {', '.join(map(repr, unknown[:3]))}")
    for i, (names, module) in enumerate(zip(nodes, modules, strict=True)):
        first, last = by_name[names[0]], by_name[names[-1]]
        model.add_module(f"chain_{i}", module)
        with graph.inserting_before(first):
            call = graph.create_node("call_module", f"chain_{i}", (first.all_input_nodes[0],))
        last.replace_all_uses_with(call)
        for name in reversed(names):
            graph.erase_node(by_name[name])
    if [node.op for node in graph.nodes] == ["placeholder", "call_module", "output"] and len(modules) == 1:
        return modules[0]
    return fx.GraphModule(model, graph, "Compiled")


def _kind_of_module(module: nn.Module, node: fx.Node, stages: StageGate | None) -> tuple[Kind | None, str]:
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
    return (kind, activation) if is_unmodified(module, stages) else (None, activation)


def _kind_of_call(node: fx.Node) -> tuple[Kind | None, str]:
    activation = of_call(node.target, node.kwargs)
    if activation is not None:
        return "activation", activation
    if node.target is F.dropout and not node.kwargs.get("training", True):
        return "nothing", "identity"
    return None, "identity"


def _passes_nothing_through(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    """Whether `node` is the residual fallback of a Switch without a capacity, which serves every row and drops none.
    (A Switch with a capacity is not traced into.)"""
    return node.op == "call_module" and isinstance(modules[str(node.target)], ResidualFallback) and node.args[2] is None
