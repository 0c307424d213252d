"""A model as runs of linear layers in plain terms, and the rest of it as it is.

A model is traced and its chains are found as `compile` finds them; a plan gives back the layers that were packed for
its kernels. Both become the same description, from which every form is written.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.gating.stages import StageGate, stages_of
from dynamicgate.inference.compiled_model import CompiledModel
from dynamicgate.inference.cpu.chain import Chain
from dynamicgate.inference.cpu.find import find_chains
from dynamicgate.inference.cpu.lower import Lowered, Router, lower_chain
from dynamicgate.inference.cpu.unpacked import unpacked_chain
from dynamicgate.inference.graph import replace_nodes, trace
from dynamicgate.inference.shadow_copy import copy_sharing_memory
from dynamicgate.modules import unwrap
from dynamicgate.ops.chain.layers import Layer
from dynamicgate.ops.chain.stages import Staged


@dataclass(frozen=True)
class ChainParts:
    """A chain as layers: nothing here is packed."""

    layers: tuple[Layer, ...] = ()
    """Without stages: its layers, some with gates."""
    staged: Staged | None = None
    router: Router | None = None
    """Decides for the first layer, if that has blocks and no gate of its own."""
    norm_eps: float | None = None
    """The first layer reads what `scaled_features` returns."""
    names: tuple[str, ...] = ()
    open_rate: float | None = None
    """Mean open rate of its gates on the example, if it has some."""

    @property
    def is_gated(self) -> bool:
        """Whether a gate on units decides for each row."""
        return any(layer.block for layer in self.layers)

    @property
    def outputs(self) -> int:
        """Values for each row."""
        return self.layers[-1].weight.shape[0] if self.staged is None else self.staged.outputs


@dataclass(frozen=True)
class Split:
    """A model in which every chain was replaced."""

    body: nn.Module
    chains: list[ChainParts]
    notes: list[str]


Make = Callable[[int, ChainParts], nn.Module]


def split_model(model: nn.Module, example: Any, make: Make) -> Split:
    """A copy of a model or of a plan in which `make` has replaced each chain by a module. What is no chain stays in
    torch, with its gates as masks."""
    model = unwrap(model)
    if isinstance(model, CompiledModel):
        return _split_plan(model, make)
    reference = copy_sharing_memory(nn.Sequential(model) if isinstance(model, nn.Linear) else model)
    gates, stages = named_gates(reference), stages_of(reference)
    try:
        if not isinstance(example, Tensor) or not example.is_floating_point() or example.is_cuda:
            raise ValueError("only models that read one float32 tensor on the cpu have chains")
        graph = trace(reference)
        with torch.no_grad():
            found, reasons = find_chains(reference, graph, gates, example[:8])
    except ValueError as error:
        return Split(_in_torch(reference, stages), [], _notes(gates, stages, dict.fromkeys([*gates, ""], str(error))))
    rates = _open_rates(reference, gates, example)
    chains: list[ChainParts] = []
    modules: list[nn.Module] = []
    for chain in found:
        parts = _parts(lower_chain(chain, gates), tuple(step.name for step in chain.linears), rates)
        modules.append(make(len(chains), parts))
        chains.append(parts)
    body = replace_nodes(reference, graph, [chain.nodes for chain in found], modules) if found else reference
    inside = {name for parts in chains for name in parts.names}
    left = {name: reasons.get(name, "it is no part of a chain") for name in gates if name not in inside}
    if stages is not None and not any(parts.staged for parts in chains):
        left[""] = next(iter(reasons.values()), "its layers are no chain")
    return Split(_in_torch(body, stages), chains, _notes(gates, stages, left))


def _split_plan(plan: CompiledModel, make: Make) -> Split:
    if plan.nodes is None:
        raise ValueError(
            "a plan on a GPU holds kernels of its own, which no other runtime has: export the model it was made from"
        )
    body = copy.deepcopy(plan.body).eval()
    chains: list[ChainParts] = []
    notes: list[str] = []

    def replaced(chain: Chain) -> nn.Module:
        parts = _parts_of_plan(chain)
        if parts is None:
            notes.append("stages: all of them are computed for every row, as this plan does")
            return _single(chain)
        chains.append(parts)
        return make(len(chains) - 1, parts)

    if isinstance(body, Chain):
        return Split(replaced(body), chains, notes)
    for i in range(len(plan.nodes)):
        chain = body.get_submodule(f"chain_{i}")
        assert isinstance(chain, Chain)
        setattr(body, f"chain_{i}", replaced(chain))
    gates, stages = named_gates(body), stages_of(body)
    left = dict.fromkeys(gates, "the plan has it in torch")
    return Split(_in_torch(body, stages), chains, notes + _notes(gates, stages, left))


def _parts(lowered: Lowered, names: tuple[str, ...], rates: Mapping[str, float]) -> ChainParts:
    staged = None if lowered.order is None else lowered.order.split(lowered.layers)
    layers = tuple(lowered.layers) if staged is None else ()
    mine = [rates[stage.site] for stage in lowered.stages if stage.site is not None]
    rate = sum(mine) / len(mine) if mine else None
    return ChainParts(layers, staged, lowered.router, lowered.norm_eps, names, rate)


def _parts_of_plan(chain: Chain) -> ChainParts | None:
    """The layers of one implementation: all of them compute the same. None where all are dense stages, which do not
    know where the units of every layer are divided."""
    router = None
    if chain.router is not None:
        router = Router(chain.router.gate.net, chain.router.k, chain.router.tau)
    found = unpacked_chain(chain)
    if found is None:
        return None
    if isinstance(found, Staged):
        return ChainParts(staged=found, norm_eps=chain.norm_eps)
    return ChainParts(tuple(found), router=router, norm_eps=chain.norm_eps)


def _single(chain: Chain) -> Chain:
    """The chain with one implementation, so that no number of rows chooses another."""
    return Chain(chain.implementations[:1], [0], [1], chain.inputs, norm_eps=chain.norm_eps)  # type: ignore[arg-type]


def _open_rates(model: nn.Module, gates: Mapping[str, Gate], example: Tensor) -> dict[str, float]:
    """By site, the mean open rate on the example."""
    with torch.no_grad(), usage(model) as used:
        model(example)
        return {name: float((used[name].scale != 0).double().mean()) for name in gates}


def _in_torch(body: nn.Module, stages: StageGate | None) -> nn.Module:
    """The body without the hooks by which stages repair weights as they run: no export knows a weight that changes."""
    for module in body.modules():
        if isinstance(module, nn.Linear) and stages is not None:
            keys = [key for key, hook in module._forward_pre_hooks.items() if getattr(hook, "__self__", None) is stages]
            for key in keys:
                del module._forward_pre_hooks[key]
                module.weight = nn.Parameter(module.weight.detach() * module.mask, requires_grad=False)  # type: ignore[operator]
    return body


def _notes(gates: Mapping[str, Gate], stages: StageGate | None, left: Mapping[str, str]) -> list[str]:
    """A sentence for each reason why something executes all MACs."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in left.items():
        if name in gates:
            by_reason.setdefault(reason, []).append(repr(name))
        elif stages is not None:
            by_reason.setdefault(reason, []).append("stages")
    return [
        f"{', '.join(names)}: closed units are multiplied by zero, not skipped: {why}"
        for why, names in by_reason.items()
    ]
