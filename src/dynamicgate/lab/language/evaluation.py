"""Bits per byte of a trained GPT, what its tokens cost, and where they cost it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from dynamicgate.budget.locality import neighbours, read_by, same_place
from dynamicgate.gating.recording import usage
from dynamicgate.lab.language.costs import Costs
from dynamicgate.lab.language.gpt import GPT
from dynamicgate.lab.language.load import rarely_open
from dynamicgate.lab.language.text import Text, fixed_windows, on_device
from dynamicgate.modules import evaluating

WINDOWS, BATCH = 2048, 64
TOGETHER = 16  # tokens that decode at once


@torch.no_grad()
def evaluate_text(costs: Costs, text: Text, part: str, device: torch.device, most: int = WINDOWS) -> dict[str, Any]:
    """Loss on `most` windows of a part, spread evenly over it: nats a token, bits a byte, executed MACs of a token, and
    how often the blocks of each layer are open, how many hardly ever, and how many 16 tokens read together: neighbours,
    and of different windows. Gates are hard, as deployed."""
    model = costs.prepared.model
    tokens = on_device(text.tokens[part], device)
    losses: list[Tensor] = []
    executed: list[Tensor] = []
    rates: list[Tensor] = []
    read: list[Tensor] = []
    with evaluating(model), torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        for ids, targets in fixed_windows(tokens, BATCH, model.config.context, most):
            with usage(model) as used:
                losses.append(token_losses(model, ids, targets).mean(1))
            executed.append(costs.executed(used) * len(ids))
            if len(used):
                rates.append(torch.stack([d.open.flatten(0, -2).mean(0) for d in used.values()]) * len(ids))
                ways = (neighbours, same_place)
                read.append(torch.stack([read_by(way(d.open, TOGETHER)) for way in ways for d in used.values()]))
    each = torch.cat(losses)
    nats, rows = float(each.mean()), len(each)
    found: dict[str, Any] = {
        "loss": nats,
        "loss_se": float(each.std()) / math.sqrt(rows) if rows > 1 else None,
        "bits_per_byte": nats / math.log(2) / text.bytes_a_token(part),
        "executed": float(torch.stack([torch.as_tensor(x) for x in executed]).sum()) / rows,
        "windows": rows,
    }
    if rates:
        open_LG = torch.stack(rates).sum(0) / rows
        found["open"] = [round(x, 5) for x in open_LG.mean(1).tolist()]
        of_neighbours, of_windows = torch.stack(read).mean(0).view(2, -1).mean(1).tolist()
        found["read_by_16"] = {"neighbours": round(of_neighbours, 5), "windows": round(of_windows, 5)}
        found["rarely_open"] = [round(rarely_open(open_G), 4) for open_G in open_LG]
    return found


def token_losses(model: GPT, ids: Tensor, targets: Tensor) -> Tensor:
    """The loss of every token, [B, T]."""
    scores = model(ids).float()
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
