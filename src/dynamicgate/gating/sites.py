"""Sites: the places in a model where a gate may sit (sec 3).

A site is a vector of hidden units between the layers that write it and the one that reads it::

    source input ──> producers ──> activation, dropout ──> [gate] ──> consumer

In a gated linear unit, what the activation gives is a vector of factors, and a site too::

    source ──> consumer (the activation) ──> [gate] ──> times what the producers write

Sites are found by tracing the data flow from `nn.Linear` to `nn.Linear` through unit-wise operations only: a closed
unit must not be able to change its neighbours (a LayerNorm in between would). The units may also be the channels of
`nn.Conv2d`, see `channel_sites`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from itertools import takewhile
from typing import Any

import torch
from torch import fx, nn

from dynamicgate.gating.channel_sites import Channels, channels_before
from dynamicgate.gating.unit_wise import UNIT_WISE_FUNCTIONS, UNIT_WISE_MODULES, is_reshape, passes_units
from dynamicgate.gating.why_not import is_layer, why_blocked

OF_HEADS = ("head_dim", "heads_per_group")
LAYERS = (nn.Linear, nn.Conv2d)


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
    channels: bool = False
    """Whether the units are channels, written by `nn.Conv2d` layers and decided once for an image. The consumer is a
    Conv2d, or a Linear that reads one value of each channel, or several, channel after channel."""
    factors: bool = False
    """Whether the units are factors, in a gated linear unit: the consumer is the activation behind the `source`, and
    what it gives multiplies what the producers write. Where a factor is closed, the producers need not write."""

    def __post_init__(self) -> None:
        if self.factors and (self.channels or self.head_dim is not None or not self.producers):
            raise ValueError("factors multiply what producers write, and are neither channels nor heads")
        if self.channels and self.head_dim is not None:
            raise ValueError("a site is of channels or of heads, received channels=True and head_dim")
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
        """Plain values, as files hold them; those of heads and of channels are left out for other units."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        others: tuple[str, ...] = () if self.is_heads else OF_HEADS
        others += tuple(name for name in ("channels", "factors") if not getattr(self, name))
        return {name: value for name, value in found.items() if name not in others}

    @property
    def name(self) -> str:
        """A site is named after its consumer: a layer reads one vector only."""
        return self.consumer

    @property
    def is_input(self) -> bool:
        """Whether the units are the features of the model's input."""
        return not self.producers

    @property
    def decides_in_time(self) -> bool:
        """Whether a gate that reads the source decides before the units are computed: closing them then saves that."""
        return self.source != self.consumer or self.is_input

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
        if self.factors:
            return f"{self.name!r}: {self.width} factors from {self.source}, of what {written} writes"
        units = "channels" if self.channels else "units"
        return f"{self.name!r}: {self.width} {units} from {written}, read by {self.consumer}"


def find_sites(model: nn.Module) -> list[Site]:
    """All candidate sites of `model`, in the order of the forward pass; the ones on input features come first."""
    if isinstance(model, LAYERS):
        kind = "Linear layer" if isinstance(model, nn.Linear) else "convolution"
        raise ValueError(f"a single {kind} has no hidden units to gate; pass the model that contains it")
    return list(_sites_below(model, prefix=""))


def _sites_below(module: nn.Module, prefix: str) -> Iterator[Site]:
    """Trace the whole module; where that fails (control flow, unusual arguments) trace its children one by one."""
    yield from (found for found in _found_below(module, prefix) if isinstance(found, Site))


def why_not_sites(model: nn.Module) -> list[str]:
    """For each layer that reads another one and is no site: what lies between, or who else reads it, in words."""
    return [found for found in _found_below(model, "") if isinstance(found, str)]


def _found_below(module: nn.Module, prefix: str) -> Iterator[Site | str]:
    """The sites, and sentences about what is none."""
    if not any(isinstance(m, LAYERS) for m in module.modules()):
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
        if not isinstance(child, LAYERS):
            yield from _found_below(child, f"{prefix}{name}.")


def traced_sites(module: nn.Module, prefix: str = "") -> list[Site] | None:
    """The sites of a module whose own forward pass can be traced, with names after `prefix`; None if it cannot be."""
    traced = _traced(module, prefix)
    return None if traced is None else [found for found in traced if isinstance(found, Site)]


def _traced(module: nn.Module, prefix: str) -> list[Site | str] | None:
    """The sites of a traced module, and sentences about what is none."""
    graph, untraced = _graph(module)
    if graph is None:
        return None
    modules = dict(module.named_modules())
    calls = [node for node in graph.nodes if is_layer(node, modules)]
    order = [prefix + str(node.target) for node in calls]
    found: dict[str, set[Site | str | None]] = {}
    for node in calls:
        found.setdefault(str(node.target), set()).add(_read_by(node, modules, prefix, order))
    only = [sites.pop() for sites in found.values() if len(sites) == 1]
    kept = [each for each in only if isinstance(each, str) or (each is not None and _takes_turns(each, order))]
    sites = [each for each in kept if isinstance(each, Site)]
    kept = [each for each in kept if isinstance(each, str) or not _closed_further_on(each, sites)]
    return [*kept, *(each for name in untraced for each in _found_below(modules[name], f"{prefix}{name}."))]


def _graph(module: nn.Module) -> tuple[fx.Graph | None, list[str]]:
    """The graph of a module, and the modules with convolutions that it does not look into: where a part with
    convolutions cannot be traced, the Linear layers around it still may be. None if nothing can be traced."""
    kinds: list[tuple[type[nn.Module], ...]] = [LAYERS, (nn.Linear,)]
    if not any(isinstance(m, nn.Conv2d) for m in module.modules()):
        kinds = [(nn.Linear,)]
    for inside in kinds:
        try:
            graph = _LayerTracer(inside).trace(module)
        except Exception:  # fx raises whatever the traced forward raises on a symbolic value; the children may trace
            continue
        names = dict.fromkeys(str(node.target) for node in graph.nodes if node.op == "call_module")
        parts = {name: module.get_submodule(name) for name in names}
        return graph, [name for name, part in parts.items() if not isinstance(part, LAYERS)]
    return None, []


def _read_by(node: fx.Node, modules: dict[str, nn.Module], prefix: str, order: list[str]) -> Site | str | None:
    """The site that a layer reads, or why it reads none."""
    channels = channels_before(node, modules, prefix)
    name = prefix + str(node.target)
    if isinstance(channels, Channels):
        if any(order.count(layer) > 1 for layer in (name, *channels.producers)):
            return f"{name!r} or what it reads runs more than once in a forward pass: a gate on channels decides once"
        return Site(name, channels.producers, channels.producers[0], channels.width, channels=True)
    if channels is not None or isinstance(modules[str(node.target)], nn.Conv2d):
        return channels
    return _site_before(node, modules, prefix)


def _closed_further_on(site: Site, sites: list[Site]) -> bool:
    """Whether the channels that a depthwise convolution reads are closed together with those that it writes."""
    return site.channels and any({site.consumer, site.producers[0]} <= {*other.producers} for other in sites)


def gives_output(model: nn.Module, layer: str) -> bool:
    """Whether what the layer computes is what the model returns; True where that cannot be traced."""
    try:
        graph = _LayerTracer((nn.Linear,)).trace(model)
    except Exception:  # as in _graph
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


class _LayerTracer(fx.Tracer):
    def __init__(self, wanted: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self.wanted = wanted

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look inside a module only if there is a layer to find, but never into a layer: its child may be a gate."""
        return isinstance(m, LAYERS) or not any(isinstance(child, self.wanted) for child in m.modules())


def _is_linear(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and isinstance(modules[str(node.target)], nn.Linear)


def _is_half(node: fx.Node) -> bool:
    """Whether it is one of two halves of the units: `w12(x).chunk(2, dim=-1)[0]`."""
    if node.target is not operator.getitem or not isinstance(node.args[0], fx.Node):
        return False
    cut = node.args[0]
    if cut.target not in (torch.chunk, "chunk"):
        return False
    given: list[Any] = [*cut.args[1:], *(cut.kwargs[key] for key in ("chunks", "dim") if key in cut.kwargs)]
    return given == [2, -1]


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
        elif passes_units(node, modules) or is_reshape(node, modules):
            reshaped = reshaped or is_reshape(node, modules)
            pending.extend(n for n in node.all_input_nodes if n not in between)
        elif _is_half(node):
            values = 2
            (cut,) = node.all_input_nodes
            between.add(cut)
            pending.extend(n for n in cut.all_input_nodes if n not in between)
        else:
            return why_blocked(reader, node, modules, prefix, "unit")
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
