"""Does a compiled model compute what the hard model computes? In float64, on the example and on random inputs.

Float32 sums differ in the last digits with their order, so a logit at its threshold may fall on either side, and with
it a whole row. Rows with such a logit are left out, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Decision, Gate, count_of
from dynamicgate.gating.recording import named_gates, usage
from dynamicgate.inference.shadow_copy import in_double

TOLERANCE = 1e-4  # of the largest output; float32 sums over 16,384 inputs stay below 1e-5
MARGIN = 2e-5  # of the logits of a block: what rounding may move one by
MOST_MACS = 4e9  # of reference work; a few seconds in float64


@torch.no_grad()
def check(
    fast: nn.Module,
    model: nn.Module,
    x: Tensor,
    *,
    batches: Sequence[int] = (1, 16),
    dropped: Mapping[str, Tensor] | None = None,
) -> dict[str, float]:
    """Compare `fast` with the hard `model` on rows of `x` and on random ones, at each batch size.

    Returns rows compared, rows left out as ties, and the largest error relative to the largest output. Raises
    ValueError where that is above the tolerance. dropped: by site, blocks that were removed although an input might
    open them; rows that do are left out too.
    """
    twin = in_double(model)
    gates = named_gates(twin)
    rows = _rows_to_compare(x, model)
    alone = all(gate.config.capacity is None for gate in gates.values())  # else a row depends on its batch
    expected, tied = _reference(twin, gates, rows, dropped or {}) if alone else (rows, rows)
    error, ties, compared = 0.0, 0, 0
    for batch in batches:
        for index in (torch.arange(max(batch, len(rows))) % len(rows)).split(batch):
            y = _drawn_alike(fast, rows[index])
            want, tie = (expected[index], tied[index]) if alone else _reference(twin, gates, rows[index], dropped or {})
            scale = max(float((expected if alone else want).abs().max()), 1e-6)
            wrong = (y.double() - want).abs().flatten(1).amax(1)[~tie] / scale
            worst = float(wrong.max()) if wrong.numel() else 0.0
            if not worst <= TOLERANCE:
                raise ValueError(
                    f"the plan does not compute what the model computes: outputs differ by {worst:.2g} of the largest "
                    f"at batch {batch}, expected at most {TOLERANCE:g}; it is refused"
                )
            error, ties, compared = max(error, worst), ties + int(tie.sum()), compared + int((~tie).sum())
    return {"rows": compared, "ties": ties, "error": error}


def _rows_to_compare(x: Tensor, model: nn.Module) -> Tensor:
    """Rows of the example and as many random ones of the same mean and spread, the same ones every time."""
    cost = sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear)) * max(
        1, x[0].numel() // x.shape[-1]
    )
    count = int(min(len(x), 256, max(8, MOST_MACS / max(1, cost) / 2)))
    generator = torch.Generator().manual_seed(0)
    spread, middle = float(x.std(correction=0)), float(x.mean())
    random = torch.randn(count, *x.shape[1:], generator=generator) * spread + middle
    return torch.cat((x[:count], random.to(x)))


def _reference(
    twin: nn.Module, gates: Mapping[str, Gate], rows: Tensor, dropped: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Outputs in float64, and which rows have a decision that rounding could change."""
    context: Any = usage(twin) if gates else nullcontext({})
    with context as used:
        y = _drawn_alike(twin, rows.double())
        tied = torch.zeros(len(rows), dtype=torch.bool)
        for name, gate in gates.items():
            unsure_BG = unsure(gate, used[name])
            if name in dropped:
                unsure_BG = unsure_BG | ((used[name].open != 0) & dropped[name])
            unsure_B = unsure_BG.reshape(len(rows), -1).any(1)
            # Where an expert has few places, a row that asks for one may cost any other row its own.
            tied |= unsure_B if gate.config.capacity is None else unsure_B.any()
    return y, tied


def unsure(gate: Gate, decision: Decision, margin: float = MARGIN) -> Tensor:
    """Which decisions are too close to call, if rounding moves a logit by up to `margin` of the largest of its block;
    those of a static gate are the same bit for bit."""
    config, z_BG = gate.config, decision.logits.double()
    unsure_BG = torch.zeros_like(z_BG, dtype=torch.bool)
    if config.kind == "static" or config.evaluate == "soft":
        return unsure_BG
    k = count_of(config.always_open if config.top_k is None else config.top_k, gate.blocks)
    if config.top_k is None:
        margin_G = margin * z_BG.abs().flatten(0, -2).amax(0).clamp(min=1.0) if z_BG.numel() else 0.0
        unsure_BG = (z_BG - gate.logit_threshold).abs() < margin_G
    if 0 < k < gate.blocks:
        best = z_BG.sort(dim=-1, descending=True).values
        p = decision.p.sort(dim=-1, descending=True).values  # saturated in float32, p cannot rank what z can
        close = best[..., k - 1] - best[..., k] < margin * best[..., k].abs().clamp(min=1.0)
        unsure_BG = unsure_BG | (close | (p[..., k - 1] == p[..., k])).unsqueeze(-1)
    return unsure_BG


def _drawn_alike(model: nn.Module, x: Tensor) -> Tensor:
    """The outputs, with the same draws each time (experts may be filled in random order)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return model(x)
