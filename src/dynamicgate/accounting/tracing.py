"""Run a model once on an example: how many rows each layer processes for a sample, and what else costs MACs."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from dynamicgate.accounting.attention import module_around
from dynamicgate.accounting.counter import MacCounter
from dynamicgate.data.contract import Inputs, call, count_samples
from dynamicgate.gating.recording import named_gates
from dynamicgate.gating.stages import stages_of
from dynamicgate.linears import is_linear, outer_name
from dynamicgate.modules import evaluating, unwrap


def count_macs(model: nn.Module, example: Inputs) -> MacCounter:
    """The counter of any model, from one forward pass on `example` in evaluation mode.

    example: a tensor of a few samples, or a tuple or a mapping of what the model is called with.
    """
    from torch.utils.flop_counter import FlopCounterMode  # here: it imports Triton

    base, samples = unwrap(model), count_samples(example)
    linears = {name: m for name, m in base.named_modules() if is_linear(m)}
    rows: dict[str, float] = {}
    handles = [m.register_forward_pre_hook(_count_rows(rows, name)) for name, m in linears.items()]
    flops = FlopCounterMode(display=False)
    around = {name: module_around(g.site_at(name)) for name, g in named_gates(base).items() if g.site.is_heads}
    in_attention: dict[str, float] = {}
    for name in dict.fromkeys(around.values()):
        handles += _count_flops(base.get_submodule(name), flops, in_attention, name)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # the fused attention kernel is one op that no counter looks into
    try:
        # MATH: the counter does not know the fused attention of the CPU. Gradients on: without, a view of a parameter
        # (static logits, once for each row) claims to need a gradient that it does not have, and the counter trips.
        with evaluating(base), sdpa_kernel(SDPBackend.MATH), torch.enable_grad(), _plain_stages(base), flops:
            call(base, example)
    finally:
        torch.backends.mha.set_fastpath_enabled(fastpath)
        for handle in handles:
            handle.remove()
    rows = {name: count / samples for name, count in rows.items()}
    # masked weights are multiplied all the same here, those of gate networks too
    in_linears = {name: linears[name].weight.numel() * count for name, count in rows.items()}
    attention = {
        site: max(0.0, round(in_attention.get(name, 0.0) / 2 / samples - _below(name, in_linears)))
        for site, name in around.items()
    }
    other = flops.get_total_flops() / 2 / samples - sum(in_linears.values()) - sum(attention.values())
    by_outer_name = {outer_name(name): count for name, count in rows.items()}
    return MacCounter(base, rows=by_outer_name, other=max(0.0, round(other)), attention=attention)


def _below(module: str, macs: dict[str, float]) -> float:
    """The MACs of the layers below a module."""
    return sum(count for name, count in macs.items() if not module or name.startswith(f"{module}."))


def _count_flops(module: nn.Module, flops: Any, found: dict[str, float], name: str) -> list[Any]:
    """Add up what is counted while a module runs."""

    def start(_module: nn.Module, _args: tuple[Any, ...]) -> None:
        found[name] = found.get(name, 0.0) - flops.get_total_flops()

    def stop(_module: nn.Module, _args: tuple[Any, ...], _out: Any) -> None:
        found[name] += flops.get_total_flops()

    return [module.register_forward_pre_hook(start), module.register_forward_hook(stop)]


def _plain_stages(model: nn.Module) -> AbstractContextManager[None]:
    """Without decisions on stages: in torch they cost a second output layer that no plan computes."""
    stages = stages_of(model)
    return nullcontext() if stages is None else stages.skipped()


def _count_rows(rows: dict[str, float], name: str) -> Any:
    def count(_module: nn.Module, args: tuple[Any, ...]) -> None:
        rows[name] = rows.get(name, 0.0) + args[0].shape[:-1].numel()

    return count
