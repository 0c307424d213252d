"""What the plan says about a feed-forward layer: the choice in words, and times divided over its Linear layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dynamicgate.inference.gpu.candidates import UNGATED
from dynamicgate.inference.gpu.choose import Chosen
from dynamicgate.inference.gpu.ffn import FeedForward
from dynamicgate.inference.gpu.find import GatedFFN
from dynamicgate.inference.plan import LayerPlan, Regime


def regimes_of(
    ffn: GatedFFN, layer: FeedForward, chosen: Chosen, batches: Sequence[int], macs: Mapping[str, float]
) -> list[Regime]:
    """One regime for each number of tokens; times are divided over the Linear layers in proportion to their MACs."""
    whole = sum(linear.weight.numel() for linear in ffn.linears)
    work = sum(macs[name] for name in ffn.names)
    found = []
    for batch, times, name in zip(batches, chosen.times, chosen.names, strict=True):
        dense_us = min(t for timed, t in times.items() if timed.startswith(UNGATED))
        choice = _words(name, layer.block) + (", CUDA graph" if batch in layer.captured else "")
        rows = []
        for linear_name, linear in zip(ffn.names, ffn.linears, strict=True):
            shape = (linear.out_features, linear.in_features)
            executed, dense = macs[linear_name] / max(work, 1.0), linear.weight.numel() / whole
            rows.append(
                LayerPlan(linear_name, shape, choice, dense_us * dense, times[name] * executed, macs[linear_name])
            )
        gated = {timed: t for timed, t in times.items() if not timed.startswith(UNGATED)}
        found.append(Regime(batch, rows, name, gated, dense_us))
    return found


def _words(name: str, block: int) -> str:
    return name.replace("gated", f"block-gated ({block})").replace("decode", f"decode ({block})")
