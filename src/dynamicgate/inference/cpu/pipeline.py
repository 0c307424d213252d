"""`compile` on the CPU, stage by stage: profile, find chains, lower them, choose the fastest candidates, verify."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx, nn

from dynamicgate import ops
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.cpu.breakdown import regimes_of, ungated
from dynamicgate.inference.cpu.choose import choose_candidates
from dynamicgate.inference.cpu.find import LinearChain, find_chains
from dynamicgate.inference.cpu.lower import lower_chain
from dynamicgate.inference.cpu.stage_breakdown import opened_stages, stage_note, staged_regimes
from dynamicgate.inference.cpu.stage_candidates import StagedCandidates, candidates_of
from dynamicgate.inference.cpu.verify import verify_model
from dynamicgate.inference.gates import context_words
from dynamicgate.inference.graph import replace_nodes, trace
from dynamicgate.inference.plan import Plan
from dynamicgate.inference.profiling import (
    CLOSED_CHANNELS,
    executed_macs,
    never_open_blocks,
    never_open_notes,
    rows_at_nodes,
)
from dynamicgate.inference.shadow_copy import copy_sharing_memory, held_bytes, stop_sharing_
from dynamicgate.inference.timing import threads_of_torch

REMOVED = "units that nothing reads were removed: what rows with infinite inputs give may differ from the model"


def compile_on_cpu(
    model: nn.Module,
    example: Tensor,
    *,
    batches: Sequence[int],
    calibration: Tensor,
    drop_never_open: bool,
    memory: float | None,
    threads: int | None,
    same_bits: bool,
    seconds: float,
) -> tuple[nn.Module, Plan, list[list[str]]]:
    """The compiled body, its plan, and for each chain the names of the traced nodes that it replaced."""
    reference = copy_sharing_memory(nn.Sequential(model) if isinstance(model, nn.Linear) else model)
    gates = named_gates(reference)
    with torch.no_grad(), threads_of_torch(threads):
        macs, open_rates = executed_macs(reference, gates, example)
        never_open = never_open_blocks(reference, gates, calibration)
        graph, found, notes = _find(reference, gates, example)
        notes += _conv_notes(gates) + _context_notes(gates, found)
        lowered = [lower_chain(chain, gates, never_open if drop_never_open else {}) for chain in found]
        if any(low.removed for low in lowered):
            notes.append(REMOVED)
        dropped = {site: never_open[site] for low in lowered for site in low.dropped}
        entering = rows_at_nodes(reference, graph, [chain.input for chain in found], example) if graph else []
        chains, regimes = [], []
        for chain, low, rows_RD in zip(found, lowered, entering, strict=True):
            each = seconds / len(found)
            candidates = candidates_of(low)
            chosen = choose_candidates(
                candidates,
                ungated(chain),
                rows_RD,
                batches,
                open_rates=open_rates,
                seconds=0.7 * each,
                memory=memory,
                same_bits=same_bits,
            )
            if isinstance(candidates, StagedCandidates):
                opened = opened_stages(reference, example)
                regimes.append(staged_regimes(chain, candidates, chosen, batches, opened))
                notes.append(stage_note(chain, opened))
            else:
                regimes.append(regimes_of(chain, candidates, chosen, rows_RD, batches, macs, 0.3 * each))
            chains.append(candidates.chain(chosen.implementations, chosen.choice, batches))
        nodes = [chain.nodes for chain in found]
        body = replace_nodes(reference, graph, nodes, chains).eval() if graph else reference
        stop_sharing_(body, model)
        plan = Plan(
            regimes,
            notes + never_open_notes(gates, never_open, dropped),
            verification=verify_model(body, model, example, batches=batches, dropped=dropped),
            backend=ops.backend(),
            threads=torch.get_num_threads(),
            memory=sum(map(held_bytes, chains)) / max(1, sum(low.dense_bytes for low in lowered)),
        )
    return body, plan, nodes


def _find(
    reference: nn.Module, gates: Mapping[str, Gate], example: Tensor
) -> tuple[fx.Graph | None, list[LinearChain], list[str]]:
    """The traced model, its chains, and sentences about what stays in torch; no graph if there is no chain."""
    try:
        graph = trace(reference)
    except ValueError as error:
        return None, [], [f"the model runs in torch as it is: {error}"]
    chains, reasons = find_chains(reference, graph, gates, example[:8])
    return graph if chains else None, chains, _torch_notes(reference, reasons)


def _conv_notes(gates: Mapping[str, Gate]) -> list[str]:
    names = ", ".join(repr(name) for name, gate in gates.items() if gate.site.channels)
    return [f"convolutions run dense in torch with the gates of {names} as masks: {CLOSED_CHANNELS}"] if names else []


def _context_notes(gates: Mapping[str, Gate], chains: Sequence[LinearChain]) -> list[str]:
    """A sentence for each context gate that is part of a chain."""
    inside = {step.name for chain in chains for step in chain.linears}
    words = {name: context_words(gate) for name, gate in gates.items() if name in inside}
    return [f"{name!r}: {said}" for name, said in words.items() if said is not None]


def _torch_notes(reference: nn.Module, reasons: Mapping[str, str]) -> list[str]:
    linears = {name for name, m in reference.named_modules() if isinstance(m, nn.Linear)}
    by_reason: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        if name in linears:
            by_reason.setdefault(reason, []).append(name)
    return [f"{', '.join(map(repr, names))} in torch as before: {reason}" for reason, names in by_reason.items()]
