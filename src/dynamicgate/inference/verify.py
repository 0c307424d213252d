"""What rounding may change: how far outputs may differ, and which gate decisions are too close to call.

Float32 sums differ in the last digits with their order, so that a logit at its threshold may fall on either side, and
with it a whole row. Rows with such a logit are left out of the comparison, and counted.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dynamicgate.gating.gate import Decision, Gate, count_of
from dynamicgate.gating.routing import top_k_mask
from dynamicgate.gating.stages import StageDecision, StageGate

TOLERANCE = 1e-4  # of the largest output; float32 sums over 16,384 inputs stay below 1e-5
MARGIN = 2e-5  # of the logits of a block: what rounding may move one by


def near_threshold(gate: Gate, decision: Decision, margin: float = MARGIN) -> Tensor:
    """Which decisions are too close to call if rounding moves a logit by up to `margin` of the largest of its block.
    Never those of a static gate: they are the same bit for bit."""
    config, z_BG = gate.config, decision.logits.double()
    near_BG = torch.zeros_like(z_BG, dtype=torch.bool)
    if config.kind == "static" or config.evaluate == "soft":
        return near_BG
    k = count_of(config.always_open if config.top_k is None else config.top_k, gate.blocks)
    moved_G = margin * z_BG.abs().flatten(0, -2).amax(0).clamp(min=1.0) if z_BG.numel() else 0.0
    if config.top_k is None:
        near_BG = (z_BG - gate.logit_threshold).abs() < moved_G
    if 0 < k < gate.blocks:  # rounding moves both logits: one that is chosen down, one that is not up
        chosen_BG = top_k_mask(z_BG, k) > 0
        lowest_B = (z_BG - moved_G).masked_fill(~chosen_BG, torch.inf).amin(-1)
        highest_B = (z_BG + moved_G).masked_fill(chosen_BG, -torch.inf).amax(-1)
        p = decision.p.sort(dim=-1, descending=True).values  # saturated in float32, p cannot rank what z can
        near_BG = near_BG | ((lowest_B < highest_B) | (p[..., k - 1] == p[..., k])).unsqueeze(-1)
    return near_BG


def near_tie(closeness_BC: Tensor, margin: float = MARGIN) -> Tensor:
    """For each row, whether rounding may make another prototype the nearest one."""
    if closeness_BC.shape[-1] < 2 or not closeness_BC.numel():
        return torch.zeros(closeness_BC.shape[:-1], dtype=torch.bool, device=closeness_BC.device)
    closeness_BC = closeness_BC.double()
    first_B, second_B = closeness_BC.topk(2, dim=-1).values.unbind(-1)
    return first_B - second_B < 2.0 * margin * closeness_BC.abs().max().clamp(min=1.0)


def near_cut(gate: StageGate, decision: StageDecision, margin: float = MARGIN) -> Tensor:
    """Which decisions on stages are too close to call if rounding moves a score by up to `margin` of what it is
    computed from: the outputs, or, if a head decides, the scores themselves. Only those that a row got to are."""
    score_BK = decision.score.double()
    outputs = [z.detach().double() for z in decision.outputs[:-1]]
    sources = list(score_BK.unbind(-1)) if gate.config.decide == "head" else outputs
    size_K = torch.stack([source.abs().max() if source.numel() else source.new_zeros(()) for source in sources])
    near_BK = (score_BK - gate.cut).abs() < margin * size_K.clamp(min=1.0)
    return near_BK & (decision.open[..., :-1] != 0)


def refuse_above(tolerance: float, error: float, where: str, what: str = "the plan") -> None:
    """Raise ValueError if `error`, relative to the largest output, is above `tolerance` or not a number."""
    if not error <= tolerance:
        raise ValueError(
            f"{what} does not compute what the model computes: outputs differ by {error:.2g} of the largest at "
            f"{where}, expected at most {tolerance:g}; {what} is refused"
        )
