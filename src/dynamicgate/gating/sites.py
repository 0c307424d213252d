"""Sites: the places in a model where a gate may sit (sec 3).

A site is a vector of hidden units between the layers that write it and the one that reads it::

    source input ──> producers ──> activation, dropout ──> [gate] ──> consumer

Sites are found by tracing the data flow from `nn.Linear` to `nn.Linear` through unit-wise operations only: a closed
unit must not be able to change its neighbours (a LayerNorm in between would).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F

from dynamicgate.activations import ACTIVATIONS, is_of_transformers

OF_HEADS = ("head_dim", "heads_per_group")


@dataclass(frozen=True)
class Site:
    """Hidden units written by `producers`, read by `consumer`, decided from the input of `source`."""

    consumer: str
    producers: tuple[str, ...]
    source: str
    width: int
    head_dim: int | None = None
    """Units of one attention head; None where the units are not heads."""
    heads_per_group: int = 1
    """Heads that share their keys and values; for heads only."""

    def __post_init__(self) -> None:
        if self.head_dim is None and self.heads_per_group != 1:
            raise ValueError(f"heads_per_group is for heads: expected head_dim too, received {self.heads_per_group}")
        if self.head_dim is not None and self.width % (self.head_dim * self.heads_per_group):
            raise ValueError(
                f"{self.width} units are no whole number of groups of {self.heads_per_group} heads of {self.head_dim}"
            )

    @property
    def is_heads(self) -> bool:
        """Whether the units are attention heads: what a consumer of heads reads is mixed from other tokens."""
        return self.head_dim is not None

    @property
    def default_block(self) -> int:
        """The units that open together if nobody says how many: one, or the heads that share keys and values."""
        return 1 if self.head_dim is None else self.head_dim * self.heads_per_group

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as files hold them; those of heads are left out for other units."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in found.items() if self.is_heads or name not in OF_HEADS}

    @property
    def name(self) -> str:
        """A site is named after its consumer: a layer reads one vector only."""
        return self.consumer

    @property
    def is_input(self) -> bool:
        """Whether the units are the features of the model's input."""
        return not self.producers

    def moved_to(self, consumer: str) -> Site:
        """The same site as named by a model in which its consumer has the path `consumer`.

        A module that brought its gates along when it was put into another one (a `Switch` in a Sequential) has them
        under its new path; seen from inside that module they have a shorter one.
        """
        was, now = self.consumer.split("."), consumer.split(".")
        shared = len([*takewhile(lambda pair: pair[0] == pair[1], zip(was[::-1], now[::-1], strict=False))])
        old, new = was[: len(was) - shared], now[: len(now) - shared]
        names = [name.split(".") for name in (*self.producers, self.source)]
        if old == new:
            return self
        if not shared or any(name[: len(old)] != old for name in names):
            raise ValueError(
                f"the layers of the gate on {self.consumer!r} have other names in this model, where it is found at "
                f"{consumer!r}: put the gate on the model as a whole, or keep its layers together in one module"
            )
        *producers, source = (".".join(new + name[len(old) :]) for name in names)
        return replace(self, consumer=consumer, producers=tuple(producers), source=source)

    def __str__(self) -> str:
        written = " and ".join(self.producers) or "the input"
        return f"{self.name!r}: {self.width} units from {written}, read by {self.consumer}"


def find_sites(model: nn.Module) -> list[Site]:
    """All candidate sites of `model`, in the order of the forward pass; the ones on input features come first."""
    if isinstance(model, nn.Linear):
        raise ValueError("a single Linear layer has no hidden units to gate; pass the model that contains it")
    return list(_sites_below(model, prefix=""))


def _sites_below(module: nn.Module, prefix: str) -> Iterator[Site]:
    """Trace the whole module; where that fails (control flow, unusual arguments) trace its children one by one."""
    yield from (found for found in _found_below(module, prefix) if isinstance(found, Site))


def why_not_sites(model: nn.Module) -> list[str]:
    """For each Linear that reads another one through something that is not unit-wise: what lies between, in words."""
    return [found for found in _found_below(model, "") if isinstance(found, str)]


def _found_below(module: nn.Module, prefix: str) -> Iterator[Site | str]:
    """The sites, and sentences about what is none."""
    if not any(isinstance(m, nn.Linear) for m in module.modules()):
        return
    traced = _traced(module, prefix)
    if traced is not None:
        yield from traced
        return
    if isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        # Its forward pass chooses between two ways and cannot be traced, but what lies between these two is known.
        act = module.activation
        if act in UNIT_WISE_FUNCTIONS or isinstance(act, UNIT_WISE_MODULES):
            up, down = f"{prefix}linear1", f"{prefix}linear2"
            yield Site(consumer=down, producers=(up,), source=up, width=module.linear2.in_features)
    for name, child in module.named_children():
        if not isinstance(child, nn.Linear):
            yield from _found_below(child, f"{prefix}{name}.")


def traced_sites(module: nn.Module, prefix: str = "") -> list[Site] | None:
    """The sites of a module whose own forward pass can be traced, with names after `prefix`; None if it cannot be."""
    traced = _traced(module, prefix)
    return None if traced is None else [found for found in traced if isinstance(found, Site)]


def _traced(module: nn.Module, prefix: str) -> list[Site | str] | None:
    """The sites of a traced module, and sentences about what is none."""
    try:
        graph = _LinearTracer().trace(module)
    except Exception:  # fx raises whatever the traced forward raises on a symbolic value; the children may still trace
        return None
    modules = dict(module.named_modules())
    calls = [node for node in graph.nodes if _is_linear(node, modules)]
    found: dict[str, set[Site | str | None]] = {}
    for node in calls:
        found.setdefault(str(node.target), set()).add(_site_before(node, modules, prefix))
    order = [prefix + str(node.target) for node in calls]
    only = [sites.pop() for sites in found.values() if len(sites) == 1]
    return [each for each in only if isinstance(each, str) or (each is not None and _takes_turns(each, order))]


def gives_output(model: nn.Module, layer: str) -> bool:
    """Whether what the layer computes is what the model returns; True where that cannot be traced."""
    try:
        graph = _LinearTracer().trace(model)
    except Exception:  # as in _sites_below
        return True
    (returned,) = (node for node in graph.nodes if node.op == "output")
    value = returned.args[0]
    return isinstance(value, fx.Node) and value.op == "call_module" and str(value.target) == layer


def _takes_turns(site: Site, order: list[str]) -> bool:
    """Whether layers that run several times run as whole turns, producers before consumer: a gate keeps one decision,
    so that of fc1(a), fc1(b), fc2(a), fc2(b) it could not tell which is whose."""
    runs = [name for name in order if name == site.consumer or name in site.producers]
    turn = runs[: len(site.producers) + 1]
    return turn[-1] == site.consumer and runs == turn * (len(runs) // len(turn))


class _LinearTracer(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look inside a module only if there is a Linear to find."""
        return isinstance(m, nn.Linear) or not any(isinstance(child, nn.Linear) for child in m.modules())


ACTIVATION_CALLS = {call for activation in ACTIVATIONS.values() for call in activation.calls}
UNIT_WISE_MODULES = (
    *(activation.module for activation in ACTIVATIONS.values()), nn.ELU, nn.SELU, nn.CELU, nn.ReLU6, nn.LeakyReLU,
    nn.Sigmoid, nn.Softplus, nn.Hardswish, nn.Mish, nn.Dropout, nn.BatchNorm1d,
)  # fmt: skip
UNIT_WISE_FUNCTIONS = {call for call in ACTIVATION_CALLS if callable(call)} | {
    F.elu, F.selu, F.celu, F.relu6, F.leaky_relu, F.sigmoid, F.softplus, F.hardswish, F.mish, F.dropout, torch.sigmoid,
    torch.square, torch.mul, operator.mul,
}  # fmt: skip
UNIT_WISE_METHODS = {call for call in ACTIVATION_CALLS if isinstance(call, str)} | {
    "sigmoid", "square", "mul", "contiguous", "clone",
}  # fmt: skip
RESHAPES = {torch.flatten, "flatten", "view", "reshape"}


def _is_linear(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and isinstance(modules[str(node.target)], nn.Linear)


def _passes_units(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        module = modules[str(node.target)]
        unit_wise = isinstance(module, UNIT_WISE_MODULES) or is_of_transformers(module)
        return unit_wise or getattr(module, "unit_wise", False)
    if node.op == "call_function":
        return node.target in UNIT_WISE_FUNCTIONS
    return node.op == "call_method" and node.target in UNIT_WISE_METHODS


def _is_reshape(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return isinstance(modules[str(node.target)], nn.Flatten)
    return node.op in ("call_function", "call_method") and node.target in RESHAPES


def _is_half(node: fx.Node) -> bool:
    """Whether it is one of two halves of the units: `w12(x).chunk(2, dim=-1)[0]`."""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    cut = node.args[0]
    if cut.target not in (torch.chunk, "chunk"):
        return False
    given: list[Any] = [*cut.args[1:], *(cut.kwargs[key] for key in ("chunks", "dim") if key in cut.kwargs)]
    return given == [2, -1]


def _blocked(reader: fx.Node, node: fx.Node, modules: dict[str, nn.Module], prefix: str) -> str | None:
    """A sentence about an operation that is not unit-wise, if another Linear lies behind it."""
    pending, seen = [node], set[fx.Node]()
    while pending:
        before = pending.pop()
        if before not in seen:
            seen.add(before)
            pending += before.all_input_nodes
    writers = [prefix + str(before.target) for before in seen if _is_linear(before, modules)]
    if not writers:
        return None
    module = modules[str(node.target)] if node.op == "call_module" else None
    what = f"{type(module).__name__} {prefix + str(node.target)!r}" if module is not None else f"`{node.name}`"
    norms = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Softmax)
    why = (
        "it mixes the units, so that a closed one would change the others"
        if isinstance(module, norms)
        else ("it is not known to act on each unit by itself")
    )
    return f"{prefix + str(reader.target)!r} reads through {what}: {why}"


def _site_before(reader: fx.Node, modules: dict[str, nn.Module], prefix: str) -> Site | str | None:
    """Walk back from a Linear to what wrote its input; where anything but unit-wise work lies between, what it is."""
    consumer: Any = modules[str(reader.target)]
    writers: list[fx.Node] = []
    pending, between, reaches_input, reshaped = [reader.all_input_nodes[0]], set[fx.Node](), False, False
    values = 1  # that a producer writes for each unit
    while pending:
        node = pending.pop()
        if node.op == "placeholder":
            reaches_input = True
            continue
        between.add(node)
        if _is_linear(node, modules):
            writers.append(node)
        elif _passes_units(node, modules) or _is_reshape(node, modules):
            reshaped = reshaped or _is_reshape(node, modules)
            pending.extend(n for n in node.all_input_nodes if n not in between)
        elif _is_half(node):
            values = 2
            (cut,) = node.all_input_nodes
            between.add(cut)
            pending.extend(n for n in cut.all_input_nodes if n not in between)
        else:
            return _blocked(reader, node, modules, prefix)
    if any(user not in between and user is not reader for node in between for user in node.users):
        # Another consumer reads these units ungated (a residual path, say). Input features may be shared: closing
        # them for this consumer saves this consumer's work.
        return None
    if reaches_input and not writers:
        if prefix:
            return None  # the input of a submodule that was traced on its own is not the model's input
        name = str(reader.target)
        return Site(consumer=name, producers=(), source=name, width=consumer.in_features)
    widths = {modules[str(writer.target)].out_features for writer in writers}
    if reshaped:
        return None  # the rows of the decision would not be the rows of the units
    if reaches_input or widths != {values * consumer.in_features} or len({w.all_input_nodes[0] for w in writers}) > 1:
        return None
    producers = tuple(dict.fromkeys(prefix + str(writer.target) for writer in reversed(writers)))
    return Site(prefix + str(reader.target), producers, source=producers[0], width=consumer.in_features)
