"""Why a layer reads no site: what lies in front of it that is not unit-wise, in words."""

from __future__ import annotations

import operator

import torch
from torch import fx, nn

from dynamicgate.linears import is_conv2d

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.Softmax)
SUMS = {operator.add, operator.iadd, operator.sub, operator.isub, torch.add, torch.sub, "add", "add_", "sub", "sub_"}
JOINS = {torch.cat, torch.concat, torch.stack, torch.hstack}


def is_layer(node: fx.Node, modules: dict[str, nn.Module]) -> bool:
    """Whether it is a layer that writes units or channels: a Linear or a Conv2d."""
    if node.op != "call_module":
        return False
    module = modules[str(node.target)]
    return isinstance(module, nn.Linear) or is_conv2d(module)


def why_blocked(reader: fx.Node, node: fx.Node, modules: dict[str, nn.Module], prefix: str, unit: str) -> str | None:
    """A sentence about an operation that is not unit-wise, if another layer lies behind it. unit: what is not closed
    there, a "unit" or a "channel"."""
    pending, seen = [node], set[fx.Node]()
    while pending:
        before = pending.pop()
        if before not in seen:
            seen.add(before)
            pending += before.all_input_nodes
    if not any(is_layer(before, modules) for before in seen):
        return None
    return f"{prefix + str(reader.target)!r} reads through {named(node, modules, prefix)}: {_why(node, modules, unit)}"


def named(node: fx.Node, modules: dict[str, nn.Module], prefix: str) -> str:
    """A node as a sentence names it."""
    if node.op != "call_module":
        return f"`{node.name}`"
    return f"{type(modules[str(node.target)]).__name__} {prefix + str(node.target)!r}"


def _why(node: fx.Node, modules: dict[str, nn.Module], unit: str) -> str:
    module = modules[str(node.target)] if node.op == "call_module" else None
    if isinstance(module, NORMS):
        return f"it mixes the {unit}s, so that a closed one would change the others"
    if isinstance(module, nn.BatchNorm2d):
        return (
            "without running statistics it reads the whole batch, so that a channel closed for one image would change "
            "others; use track_running_stats=True"
        )
    if node.target in SUMS:
        return f"it adds another path, such as a shortcut, and every {unit} of the sum stays in use there"
    if node.target in JOINS:
        return f"it puts the {unit}s of several layers side by side"
    return f"it is not known to act on each {unit} by itself"
