"""What a model does on an example: executed MACs, open rates, blocks that never open, rows that enter its parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import usage

MAX_ROWS = 4096  # of the example
CLOSED_CHANNELS = (
    "closed channels are computed and multiplied by zero, so that fewer MACs are counted and no time is saved"
)


def executed_macs(
    reference: nn.Module, gates: Mapping[str, Gate], example: Tensor
) -> tuple[dict[str, float], dict[str, float]]:
    """By Linear layer its mean MACs for one row, with those of the gate on its outputs; by site its open rate."""
    counter = MacCounter.for_mlp(reference)  # of one row of each layer: how many rows there are does not matter here
    with usage(reference) as used:
        try:
            out = reference(example)
        except RuntimeError as error:
            raise ValueError(f"the model cannot read the example {tuple(example.shape)}: {error}") from error
        if not isinstance(out, Tensor):
            raise ValueError(f"the model must return one tensor, received {type(out).__name__}")
        decisions = deployed(counter.gates, used)
        found = {layer.name: float(layer.executed(decisions).mean()) for layer in counter.layers}
    for site, gate in gates.items():
        for name in gate.site_at(site).producers[:1]:
            if name in found:  # else a convolution, which is no part of a plan
                found[name] += gate.macs
    return found, {name: float(g.mean()) for name, g in decisions.items()}


def never_open_blocks(reference: nn.Module, gates: Mapping[str, Gate], x: Tensor) -> dict[str, Tensor]:
    """By site, which blocks of a dynamic gate open for no row of `x`; sites where every block opens are left out."""
    dynamic = {
        name: gate for name, gate in gates.items() if gate.config.kind == "dynamic" and gate.config.evaluate == "hard"
    }
    if not dynamic:
        return {}
    opened = {name: torch.zeros(gate.blocks, dtype=torch.bool, device=x.device) for name, gate in dynamic.items()}
    for part in x.split(MAX_ROWS):
        with usage(reference) as used:
            reference(part)
            for name in dynamic:
                opened[name] |= (used[name].open != 0).flatten(0, -2).any(0)
    return {name: ~opened_G for name, opened_G in opened.items() if not bool(opened_G.all())}


def never_open_notes(
    gates: Mapping[str, Gate], never_open: Mapping[str, Tensor], dropped: Mapping[str, Tensor]
) -> list[str]:
    """A sentence for each site with blocks that never open."""
    return [
        f"{name!r}: {int(closed.sum())} of {gates[name].blocks} blocks never open on the calibration data "
        f"({'removed' if name in dropped else 'kept; drop_never_open=True removes them where it can'})"
        for name, closed in never_open.items()
    ]


def rows_at_nodes(model: nn.Module, graph: fx.Graph, nodes: Sequence[fx.Node], example: Tensor) -> list[Tensor]:
    """The values of `nodes` when the traced model runs on the example, as rows of features."""
    if not nodes:
        return []
    recorder = _Recorder(fx.GraphModule(model, graph), nodes)
    recorder.run(example)
    return [recorder.values[node] for node in nodes]


def rows_into_modules(model: nn.Module, modules: Sequence[nn.Module], example: Tensor) -> list[Tensor]:
    """What enters each of `modules` when the model runs on the example, as rows of features."""
    entered: dict[nn.Module, Tensor] = {}

    def record(module: nn.Module, args: tuple[Any, ...]) -> None:
        entered[module] = _as_rows(args[0])

    handles = [module.register_forward_pre_hook(record) for module in modules]
    if modules:
        model(example)
    for handle in handles:
        handle.remove()
    return [entered[module] for module in modules]


class _Recorder(fx.Interpreter):
    """Runs a traced model and keeps the values of some nodes."""

    def __init__(self, module: fx.GraphModule, nodes: Sequence[fx.Node]) -> None:
        super().__init__(module, graph=nodes[0].graph)
        self.wanted = set(nodes)
        self.values: dict[fx.Node, Tensor] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Run it, and keep what was asked for."""
        out = super().run_node(n)
        if n in self.wanted:
            self.values[n] = _as_rows(out)
        return out


def _as_rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])[:MAX_ROWS]
