"""What the gates of a model do on an example: executed MACs, open rates, blocks that never open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import usage

MOST_ROWS = 4096  # of the example that are looked at


def executed(hard: nn.Module, gates: Mapping[str, Gate], example: Tensor) -> tuple[dict[str, float], dict[str, float]]:
    """Mean MACs of each Linear layer for one row, those of the gate on its outputs included; open rates by site."""
    counter = MacCounter.for_mlp(hard)
    with usage(hard) as used:
        try:
            out = hard(example)
        except RuntimeError as error:
            raise ValueError(f"the model cannot read the example {tuple(example.shape)}: {error}") from error
        if not isinstance(out, Tensor):
            raise ValueError(f"the model must return one tensor, received {type(out).__name__}")
        decisions = deployed(counter.gates, used)
        found = {layer.name: float(layer.executed(decisions).mean()) for layer in counter.layers}
    for gate in gates.values():
        for name in gate.site.producers[:1]:
            found[name] += gate.macs
    return found, {name: float(g.mean()) for name, g in decisions.items()}


def never_open(hard: nn.Module, gates: Mapping[str, Gate], x: Tensor) -> dict[str, Tensor]:
    """By site, the blocks of dynamic gates that open for no row."""
    dynamic = {
        name: gate for name, gate in gates.items() if gate.config.kind == "dynamic" and gate.config.evaluate == "hard"
    }
    if not dynamic:
        return {}
    opened = {name: torch.zeros(gate.blocks, dtype=torch.bool, device=x.device) for name, gate in dynamic.items()}
    for part in x.split(MOST_ROWS):
        with usage(hard) as used:
            hard(part)
            for name in dynamic:
                opened[name] |= (used[name].open != 0).flatten(0, -2).any(0)
    return {name: ~seen for name, seen in opened.items() if not bool(seen.all())}


def about_closed(gates: Mapping[str, Gate], never: Mapping[str, Tensor], dropped: Mapping[str, Tensor]) -> list[str]:
    """A sentence for each site with blocks that never open."""
    return [
        f"{name!r}: {int(closed.sum())} of {gates[name].blocks} blocks never open on the calibration data "
        f"({'removed' if name in dropped else 'kept; drop_never_open=True removes them where it can'})"
        for name, closed in never.items()
    ]


def inputs_of(body: nn.Module, modules: Sequence[nn.Module], example: Tensor) -> list[Tensor]:
    """The rows that enter each of `modules` when the model runs on the example."""
    seen: dict[nn.Module, Tensor] = {}

    def see(module: nn.Module, args: tuple[Any, ...]) -> None:
        seen[module] = args[0].reshape(-1, args[0].shape[-1])[:MOST_ROWS]

    handles = [module.register_forward_pre_hook(see) for module in modules]
    if modules:
        body(example)
    for handle in handles:
        handle.remove()
    return [seen[module] for module in modules]
