"""Channels of convolutions as sites: from one Conv2d to the next, or to a Linear behind flattening or pooling.

What lies between must act on each channel by itself: batch norm, activations, dropout, pooling. So does a depthwise
convolution: a channel that is closed behind it need not be computed in front of it either, so that it is one more
producer of the site. Values are [B, C, H, W], or [B, C] behind flattening. `spatial` are the dimensions behind the
channels: on the way back from a Linear more than one number of them may be possible.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional as F

from dynamicgate.gating.unit_wise import passes_units
from dynamicgate.gating.why_not import named, why_blocked
from dynamicgate.linears import is_conv2d, is_depthwise

FLAT, MAPS = frozenset({0}), frozenset({2})
CHANNEL_WISE_MODULES = (
    nn.BatchNorm2d, nn.InstanceNorm2d, nn.Dropout2d, nn.FeatureAlphaDropout, nn.PReLU, nn.MaxPool2d, nn.AvgPool2d,
    nn.LPPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample, nn.ZeroPad2d, nn.ConstantPad2d,
    nn.ReflectionPad2d, nn.ReplicationPad2d, nn.CircularPad2d,
)  # fmt: skip
CHANNEL_WISE_FUNCTIONS = {
    F.max_pool2d, F.avg_pool2d, F.lp_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.dropout2d, F.interpolate,
    F.instance_norm, torch.max_pool2d,
}  # fmt: skip
OVER_POSITIONS = {torch.mean, torch.amax, torch.sum, "mean", "amax", "sum"}
ASKS_SHAPE = ("size", "dim", "numel")


class Channels(NamedTuple):
    """Channels that one layer reads."""

    producers: tuple[str, ...]
    """The layers that write them; the first one reads what a gate may look at."""
    width: int
    """How many they are."""


def channels_before(reader: fx.Node, modules: dict[str, nn.Module], prefix: str) -> Channels | str | None:
    """The channels that a Conv2d or Linear reads; why they cannot be closed, in words; None where it reads none."""
    through = _walk_back(reader, modules, prefix, through_depthwise=True)
    if isinstance(through, Channels):
        return through
    # A depthwise convolution behind a shortcut is not tied to what wrote the sum, and can be gated by itself.
    beside = _walk_back(reader, modules, prefix, through_depthwise=False)
    return beside if isinstance(beside, Channels) else through


def _walk_back(
    reader: fx.Node, modules: dict[str, nn.Module], prefix: str, *, through_depthwise: bool
) -> Channels | str | None:
    consumer: Any = modules[str(reader.target)]
    name = repr(prefix + str(reader.target))
    from_conv = is_conv2d(consumer)
    pending = [(reader.all_input_nodes[0], MAPS if from_conv else FLAT)]
    between, layers, writers, reaches_input = set[fx.Node](), list[fx.Node](), list[fx.Node](), False
    while pending:
        node, spatial = pending.pop()
        if node.op == "placeholder":
            reaches_input = True
            continue
        between.add(node)
        before = MAPS if _is_conv(node, modules) and 2 in spatial else _in_front_of(node, spatial, modules)
        if not before:
            of_channels = layers or spatial == MAPS  # else a Linear may still read units of another Linear
            return why_blocked(reader, node, modules, prefix, "channel") if of_channels else None
        if _is_conv(node, modules):
            layers.append(node)
            if not (through_depthwise and is_depthwise(modules[str(node.target)])):
                writers.append(node)
                continue
        pending += [(each, before) for each in _values(node) if each not in between]
    if not writers:
        return None
    others = [user for node in between for user in node.users if user not in between and not _asks_shape(user)]
    if shared := [user for user in others if user is not reader]:
        also = named(shared[0], modules, prefix)
        return f"{name} reads channels that {also} reads too: a channel closed for one is still computed for the other"
    if reaches_input or len({writer.all_input_nodes[0] for writer in writers}) > 1:
        return f"{name} reads a product of channels that are computed from different inputs: one gate cannot close them"
    counts = sorted({_out_channels(modules[str(writer.target)]) for writer in writers})
    width: int = consumer.in_channels if from_conv else consumer.in_features
    if len(counts) > 1 or width % counts[0] or (from_conv and width != counts[0]):
        return f"{name} reads {width} values, which are not those of {' and '.join(map(str, counts))} channels"
    producers = [*reversed(writers), *(layer for layer in reversed(layers) if layer not in writers)]
    return Channels(tuple(dict.fromkeys(prefix + str(node.target) for node in producers)), counts[0])


def _is_conv(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    return node.op == "call_module" and is_conv2d(modules[str(node.target)])


def _out_channels(conv: nn.Module) -> int:
    assert isinstance(conv, nn.Conv2d)
    return conv.out_channels


def _values(node: fx.Node) -> list[fx.Node]:
    """The tensors that it computes with: the factors of a product, else its first argument. No sizes, and no parameters
    of the model, which mix nothing where they are multiplied."""
    given = node.args if node.op != "call_module" and passes_units(node, {}) else node.args[:1]
    return [each for each in given if isinstance(each, fx.Node) and each.op != "get_attr"]


def _asks_shape(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target in ASKS_SHAPE
    return node.target is getattr and node.args[1] in ("shape", "ndim", "device", "dtype")


def _in_front_of(node: fx.Node, spatial: frozenset[int], modules: dict[str, nn.Module]) -> frozenset[int]:
    """How many spatial dimensions what `node` reads may have, if what it gives may have `spatial`; none if it does not
    act on each channel by itself."""
    nothing = frozenset[int]()
    if passes_units(node, modules):
        return spatial
    if _flattens(node, modules):
        return frozenset({0, 1, 2}) if 0 in spatial else nothing
    if node.target in OVER_POSITIONS:
        return _in_front_of_mean(node, spatial)
    if node.target in (torch.squeeze, "squeeze") and _dims(node) and {*_dims(node)} <= {2, 3, -1, -2}:
        return frozenset(n + more for n in spatial for more in (0, 1, 2) if n + more <= 2)
    if 2 not in spatial:
        return nothing
    if node.op == "call_module":
        return MAPS if _is_channel_wise(modules[str(node.target)]) else nothing
    return MAPS if node.op == "call_function" and node.target in CHANNEL_WISE_FUNCTIONS else nothing


def _is_channel_wise(module: nn.Module) -> bool:
    if isinstance(module, nn.GroupNorm):
        return module.num_groups == module.num_channels
    if isinstance(module, nn.BatchNorm2d):
        return module.running_mean is not None  # else it reads the batch in evaluation too
    return isinstance(module, CHANNEL_WISE_MODULES) and not getattr(module, "return_indices", False)


def _flattens(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether it makes one dimension of channels and positions, channel after channel."""
    if node.op == "call_module":
        module = modules[str(node.target)]
        return isinstance(module, nn.Flatten) and module.start_dim == 1 and module.end_dim in (-1, 3)
    if node.target in (torch.flatten, "flatten"):
        given: dict[str, Any] = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | node.kwargs
        return given.get("start_dim") == 1 and given.get("end_dim", -1) in (-1, 3)
    if node.target in ("view", "reshape", torch.reshape):
        sizes = node.args[1] if len(node.args) == 2 else node.args[1:]
        return isinstance(sizes, tuple | list) and len(sizes) == 2  # the gate sees to it that rows stay images
    return False


def _dims(node: fx.Node) -> tuple[int, ...]:
    """The dimensions that it is told; none where they are not plain numbers."""
    given: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    found = given if isinstance(given, tuple | list) else (given,)
    return tuple(found) if all(isinstance(dim, int) for dim in found) else ()


def _in_front_of_mean(node: fx.Node, spatial: frozenset[int]) -> frozenset[int]:
    if {*_dims(node)} not in ({2, 3}, {-1, -2}):
        return frozenset()
    keeps = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    return MAPS if (2 if keeps else 0) in spatial else frozenset()
