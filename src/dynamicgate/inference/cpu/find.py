"""Which parts of a model can become a chain: maximal runs of Linear layers with only unit-wise work between them.

A gate acts through hooks on the layers at both ends of its site, so either all of these layers become part of one chain
or none does. What stays outside the chains runs in torch as before, hooks included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, fx, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.sites import Site
from dynamicgate.gating.stages import StageGate, stack_names, stages_of
from dynamicgate.inference.gates import same_for_all
from dynamicgate.inference.graph import Step, is_unmodified, steps_of

ZEROS_WORTH_SKIPPING = 0.25  # below this fraction of exact zeros, taking them out costs what it saves


@dataclass(frozen=True)
class LinearChain:
    """Steps that become one chain, in order."""

    steps: tuple[Step, ...]
    stages: StageGate | None = None
    """The gate on its stages; its layers are exactly those of the gate's stack."""

    @property
    def linears(self) -> list[Step]:
        """Its Linear layers."""
        return [step for step in self.steps if step.kind == "linear"]

    @property
    def nodes(self) -> list[str]:
        """The names of its nodes."""
        return [step.node.name for step in self.steps]

    @property
    def input(self) -> fx.Node:
        """The node whose value enters it."""
        return self.steps[0].node.all_input_nodes[0]


def find_chains(
    model: nn.Module, graph: fx.Graph, gates: Mapping[str, Gate], example: Tensor
) -> tuple[list[LinearChain], dict[str, str]]:
    """The chains of a traced model, and by name why each of the other Linear layers stays in torch.

    example: a few rows; the dimensions and the exact zeros of every value decide what can be folded.
    """
    with torch.no_grad():
        _Annotator(fx.GraphModule(model, graph)).run(example)
    stages = stages_of(model)
    steps = {step.node: step for step in steps_of(model, graph, stages)}
    reasons = dict(_unsupported_linears(model, graph, stages))
    stack = [] if stages is None else stack_names(model, stages)
    if stages is not None and (why := _why_no_stages(stages, gates)) is not None:
        reasons.update(dict.fromkeys(stack, why))
    sites = {name: gate.site_at(name) for name, gate in gates.items()}
    starts = {
        sites[name].producers[0] for name, g in gates.items() if g.config.competes and sites[name].producers
    } | set(stack[:1])
    while True:
        chains = list(_chains(graph, steps, set(reasons), starts))
        found = ((site, _why_split(site, gates[name], chains, set(reasons))) for name, site in sites.items())
        split = [(site, reason) for site, reason in found if reason is not None]
        for site, reason in split:
            for name in (*site.producers, site.source, site.consumer):
                reasons.setdefault(name, reason)
        of_stages = _why_stack_split(stack, chains, set(reasons))
        if of_stages is not None:
            reasons.update({name: reasons.get(name, of_stages) for name in stack})
        elif not split:
            return [replace(c, stages=stages) if c.linears[-1].name in stack else c for c in chains], reasons


class _Annotator(fx.Interpreter):
    """Runs the traced model and notes for every value its dimensions and its fraction of exact zeros."""

    def run_node(self, n: fx.Node) -> Any:
        """Run it, and write the notes into its meta data."""
        out = super().run_node(n)
        if isinstance(out, Tensor):
            n.meta.update(ndim=out.ndim, zeros=float((out == 0).double().mean()) if out.numel() else 0.0)
        return out


def _chains(
    graph: fx.Graph, steps: Mapping[fx.Node, Step], in_torch: set[str], starts: set[str]
) -> Iterator[LinearChain]:
    """The chains without the layers that stay `in_torch`; the layers in `starts` can only be the first of a chain."""
    used: set[fx.Node] = set()
    for node in graph.nodes:
        step = steps.get(node)
        if step is None or step.kind != "linear" or step.name in in_torch or node in used:
            continue
        found = [*_before(step, steps, used), step, *_after(step, steps, in_torch | starts, used)]
        used.update(s.node for s in found)
        yield LinearChain(tuple(found))


def _before(first: Step, steps: Mapping[fx.Node, Step], used: set[fx.Node]) -> list[Step]:
    """The steps before the first Linear that can be folded into it."""
    found: list[Step] = []
    node = first.node.all_input_nodes[0]
    while (step := steps.get(node)) is not None and node not in used and len(node.users) == 1:
        if step.kind not in ("affine", "nothing", "layer norm"):
            break
        if step.kind == "layer norm" and node.all_input_nodes[0].meta.get("zeros", 0.0) < ZEROS_WORTH_SKIPPING:
            break  # torch does it in one pass; folding it pays only if its input has exact zeros to skip
        found.insert(0, step)
        if step.kind == "layer norm":
            break
        node = node.all_input_nodes[0]
    return found


def _after(first: Step, steps: Mapping[fx.Node, Step], barred: set[str], used: set[fx.Node]) -> list[Step]:
    """The steps that follow the first Linear in its chain."""
    found: list[Step] = []
    pending: list[Step] = []  # after the last Linear; all of it belongs to the chain only if another Linear follows
    foldable = 0  # how many of them the last Linear can do itself
    node, activated, shifted = first.node, False, False
    while len(node.users) == 1:
        step = steps.get(next(iter(node.users)))
        if step is None or step.node in used or step.kind == "layer norm":
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


def _unsupported_linears(model: nn.Module, graph: fx.Graph, stages: StageGate | None) -> Iterator[tuple[str, str]]:
    modules = dict(model.named_modules())
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    for name, count in calls.items():
        module = modules[name]
        if not isinstance(module, nn.Linear):
            continue
        if count > 1 or sum(m is module for m in modules.values()) > 1:
            yield name, "it runs more than once in a forward pass"
        elif not is_unmodified(module, stages):
            yield name, "it is a subclass of Linear, or has a hook or a forward of its own"
        elif (module.weight.dtype, module.weight.device.type) != (torch.float32, "cpu"):
            yield name, f"the kernels are float32 on the cpu, it is {module.weight.dtype} on {module.weight.device}"


def _why_split(site: Site, gate: Gate, chains: list[LinearChain], in_torch: set[str]) -> str | None:
    """Why the layers around a gate cannot be part of one chain; None if they can, or if all of them stay in torch."""
    config, constant = gate.config, same_for_all(gate)
    members = {*site.producers, site.source, site.consumer}
    if members <= in_torch:
        return None
    if site.channels:
        return f"the gate of {site.name!r} closes channels of convolutions, which run dense in torch"
    if config.capacity is not None:
        return f"the experts of {site.name!r} have a capacity, which depends on the other rows of the batch"
    place = next(((c, i) for c in chains for i, s in enumerate(c.linears) if s.name == site.consumer), None)
    if place is None:
        return f"the gate of {site.name!r} ties it to a layer that stays in torch"
    chain, index = place
    if constant and site.is_input:
        return None if index == 0 else f"the gate of {site.name!r} is on features that a chain computes"
    if site.is_input:
        return f"the gate of {site.name!r} decides about input features for each input"
    if index == 0 or site.producers != (chain.linears[index - 1].name,):
        return f"between the layers of the gate of {site.name!r} is an operation that no chain supports"
    if constant:
        return None
    if site.source != site.producers[0]:
        return f"the gate of {site.name!r} reads the units it closes (reads='same')"
    if _shifted_before(chain, site.consumer):
        return f"the units of {site.name!r} are shifted between activation and gate"
    return None


def _why_no_stages(stages: StageGate, gates: Mapping[str, Gate]) -> str | None:
    """Why the stages of a model cannot become a chain, whatever its layers are."""
    if gates:
        return f"it has stages and gates on units ({', '.join(map(repr, gates))}), and no chain has both"
    if stages.config.decide == "random":
        return "its stages are decided at random, and no chain draws random numbers"
    return None


def _why_stack_split(stack: list[str], chains: list[LinearChain], in_torch: set[str]) -> str | None:
    """Why the layers of the stages cannot be one chain; None if they can, or if all of them stay in torch."""
    if in_torch.issuperset(stack):
        return None
    if in_torch.intersection(stack):
        return "its stages tie it to a layer that stays in torch"
    found = next((c for c in chains if stack[0] in [step.name for step in c.linears]), None)
    if found is None or [s.name for s in found.linears] != stack or found.steps[-1].name != stack[-1]:
        return "between the layers of its stages is an operation that no chain supports"
    return (
        "the units of its last stage are shifted after their activation" if _shifted_before(found, stack[-1]) else None
    )


def _shifted_before(chain: LinearChain, consumer: str) -> bool:
    between: list[Step] = []
    for step in chain.steps:
        if step.kind == "linear":
            if step.name == consumer:
                break
            between = []
        else:
            between.append(step)
    kinds = [step.kind for step in between]
    return "activation" in kinds and "affine" in kinds[kinds.index("activation") :]
