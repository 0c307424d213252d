"""Gated feed-forward layers anywhere in a model as one native op each; everything around them stays as it is.

Only the smallest module around such a layer is traced, so that what surrounds it (attention, loops) may be anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.cpu.ffn import NativeFFN, ffn_layers
from dynamicgate.inference.gates import without_prefix
from dynamicgate.inference.gpu.find import TracedModule, find_ffns
from dynamicgate.inference.graph import replace_nodes, trace
from dynamicgate.inference.shadow_copy import copy_sharing_memory
from dynamicgate.linears import as_linear, is_conv1d
from dynamicgate.ops import native


def replace_layers(model: nn.Module) -> tuple[nn.Module, list[dict[str, Any]], dict[str, str]]:
    """A copy of `model` with native layers, what `restore_layers` needs to make it again, and by site why the other
    gates stay in torch."""
    body = _copy_with_linears(model)
    modules, reasons = find_ffns(body, named_gates(body))
    kept = []
    for module in modules:
        usable = []
        for ffn in module.ffns:
            kinds = {(linear.weight.dtype, linear.weight.device.type) for linear in ffn.linears}
            if kinds == {(torch.float32, "cpu")}:
                usable.append(ffn)
            else:
                reasons[ffn.gate.site.name] = "the kernels are float32 on the cpu"
        if usable:
            kept.append(TracedModule(module.name, module.graph, usable))
    described = []
    for module in kept:
        layers, nodes = [], []
        for ffn in module.ffns:
            chain, router = ffn_layers(ffn.up, ffn.value, ffn.down, ffn.activation, ffn.gate)
            layers.append(NativeFFN(ops.chain.pack(chain), router))
            nodes.append(list(ffn.nodes))
        described.append({"name": module.name, "nodes": nodes, "layers": [layer.describe() for layer in layers]})
        body = _put(body, module.name, replace_nodes(body.get_submodule(module.name), module.graph, nodes, layers))
    return body.eval(), described, reasons


def restore_layers(model: nn.Module, described: list[Mapping[str, Any]], tensors: Mapping[str, Tensor]) -> nn.Module:
    """A copy of `model` with the native layers that `replace_layers` described."""
    body = _copy_with_linears(model)
    modules, _ = find_ffns(body, named_gates(body))
    graphs = {module.name: module.graph for module in modules}
    for item in described:
        name, nodes = item["name"], item["nodes"]
        if name not in graphs:
            raise ValueError(f"the plan was made for another model: this one has no gated layer in {name!r}")
        prefix = f"{name}." if name else ""
        layers = []
        for number, one in enumerate(item["layers"]):
            of_layer = without_prefix(tensors, f"{prefix}chain_{number}") or without_prefix(tensors, name)
            layers.append(NativeFFN.from_description(one, of_layer))
        body = _put(body, name, replace_nodes(body.get_submodule(name), graphs[name], nodes, layers))
    return body.eval()


def runs_by_layer(model: nn.Module) -> bool:
    """Whether native layers are all that can be done: the model cannot be traced, or its gated layers have values,
    which chains of traced models do not know."""
    if native.missing() or not named_gates(model):
        return False
    body = _copy_with_linears(model)
    modules, _ = find_ffns(body, named_gates(body))
    if any(ffn.value is not None for module in modules for ffn in module.ffns):
        return True
    try:
        trace(body)
    except ValueError:
        return bool(modules)
    return False


def _copy_with_linears(model: nn.Module) -> nn.Module:
    """A copy in which the layers of GPT-2 around gates are `nn.Linear`, with the hooks of their gates."""
    body = copy_sharing_memory(model)
    for name, gate in named_gates(body).items():
        site = gate.site_at(name)
        for layer in (*site.producers, site.consumer):
            old = body.get_submodule(layer)
            if not is_conv1d(old):
                continue
            _put(body, layer, as_linear(old))
    return body


def _put(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    if not name:
        return module
    above, _, last = name.rpartition(".")
    setattr(model.get_submodule(above), last, module)
    return model
