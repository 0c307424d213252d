"""`compile` on a CUDA GPU, stage by stage: profile, find feed-forward layers, lower them, choose strategies, verify."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from dynamicgate.gating.recording import named_gates
from dynamicgate.inference.gpu.breakdown import regimes_of
from dynamicgate.inference.gpu.choose import choose_strategies, use_chosen_
from dynamicgate.inference.gpu.choose_decoding import choose_decoding, parts_for_cache
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import TracedModule, find_ffns
from dynamicgate.inference.gpu.lower import lower_ffn
from dynamicgate.inference.gpu.verify import LayerReference, limits, verify_layer
from dynamicgate.inference.gpu.whole_model import WholeModel, choose_whole
from dynamicgate.inference.graph import replace_nodes
from dynamicgate.inference.plan import Plan, Verification, WholeRegime
from dynamicgate.inference.profiling import executed_macs, never_open_blocks, never_open_notes, rows_into_modules
from dynamicgate.inference.shadow_copy import copy_sharing_memory, held_bytes, stop_sharing_

MOST_COMPILED = 1000  # variants of a strategy: by default torch gives up after eight, and runs it eagerly from then on


def compile_on_gpu(
    model: nn.Module, example: Tensor, *, batches: Sequence[int], calibration: Tensor, seconds: float
) -> tuple[nn.Module, Plan]:
    """The compiled body and its plan. `batches` are numbers of tokens: rows that enter a layer."""
    reference = copy_sharing_memory(model)
    gates = named_gates(reference)
    with torch.no_grad(), torch._dynamo.config.patch(recompile_limit=MOST_COMPILED):
        macs, _ = executed_macs(reference, gates, example)
        never_open = never_open_blocks(reference, gates, calibration)
        modules, reasons = find_ffns(reference, gates)
        ffns = [ffn for module in modules for ffn in module.ffns]
        layers = [FeedForward(lower_ffn(ffn)) for ffn in ffns]
        parts = parts_for_cache(reference)
        body = _replace_ffns(reference, modules, layers)
        stop_sharing_(body, model)
        notes = [f"the gate of {site!r} stays in torch: {reason}" for site, reason in reasons.items()]
        regimes, verified = [], []
        for ffn, layer, rows_RD in zip(ffns, layers, rows_into_modules(body, layers, example), strict=True):
            expected = LayerReference(ffn, rows_RD)
            chosen = choose_strategies(
                layer, rows_RD, batches, seconds=seconds / len(ffns), verifiable=len(expected.rows_RD) > 0
            )
            use_chosen_(layer, rows_RD, batches, chosen)
            notes += chosen.notes
            regimes.append(regimes_of(ffn, layer, chosen, batches, macs))
            verified.append(verify_layer(expected, layer, batches))
        whole = WholeModel(body)
        whole_regimes: list[WholeRegime] = []
        if layers:
            tolerance = 3 * limits(layers[0].up_weight)[0]  # type: ignore[arg-type]
            whole_regimes, said = choose_whole(whole, example, batches, seconds=seconds, tolerance=tolerance)
            notes += said
            if parts is not None and not example.is_floating_point():
                by_down = {ffn.down: layer for ffn, layer in zip(ffns, layers, strict=True)}
                decoding, said = choose_decoding(
                    whole, parts, by_down, example, batches, seconds=seconds, tolerance=tolerance
                )
                whole_regimes, notes = whole_regimes + decoding, notes + said
    plan = Plan(
        regimes,
        list(dict.fromkeys(notes)) + never_open_notes(gates, never_open, {}),
        verification=_worst(verified) if verified else None,
        backend=_backend(example.device),
        threads=torch.get_num_threads(),
        memory=sum(map(held_bytes, layers)) / max(1, sum(ffn.dense_bytes for ffn in ffns)),
        whole=whole_regimes,
    )
    return whole, plan


def _replace_ffns(reference: nn.Module, modules: Sequence[TracedModule], layers: Sequence[FeedForward]) -> nn.Module:
    """`reference` with its gated feed-forward layers replaced, in one traced module after the other."""
    left = iter(layers)
    for module in modules:
        nodes = [ffn.nodes for ffn in module.ffns]
        new = replace_nodes(reference.get_submodule(module.name), module.graph, nodes, [next(left) for _ in nodes])
        if not module.name:
            return new
        above, _, name = module.name.rpartition(".")
        setattr(reference.get_submodule(above), name, new)
    return reference


def _worst(verified: Sequence[Verification]) -> Verification:
    return Verification(
        sum(v.rows for v in verified), sum(v.near_threshold for v in verified), max(v.error for v in verified)
    )


def _backend(device: torch.device) -> str:
    return f"triton on {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "torch"
