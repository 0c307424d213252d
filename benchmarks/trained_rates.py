"""How much each layer of a gated GPT opens once it is trained: a small one, on the pages of this repository.

Layers do not open alike, and a benchmark whose gates all open the same fraction would be kinder than the truth."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

import dynamicgate as dg
from dynamicgate.lab.language.gpt import GPT, GPTConfig, ffn_sites

DOCS = Path(__file__).resolve().parents[1] / "docs"
CONTEXT, BATCH, BLOCK = 64, 8, 16


@cache
def trained_rates(layers: int, mean: float, steps: int) -> list[float]:
    """The open fraction of each of `layers` layers after `steps` steps at a budget, scaled to exactly this mean."""
    torch.manual_seed(0)
    text = torch.tensor(list(b"".join(path.read_bytes() for path in sorted(DOCS.glob("*.md")))))
    sizes: dict[str, Any] = {"vocabulary": 256, "features": 64, "heads": 4, "width": 512}
    model = GPT(GPTConfig(layers=layers, context=CONTEXT, **sizes))
    dg.gate_(model, dg.GateConfig(block=BLOCK, net="linear"), where=ffn_sites(model))
    budget = dg.Budget(target=0.4 + 0.6 * mean)  # of all MACs: attention, gates and head take two fifths
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        windows = text[torch.randint(len(text) - CONTEXT - 1, (BATCH, 1)) + torch.arange(CONTEXT + 1)]
        budget.apply_(model, step / steps)
        with dg.usage(model) as used:
            loss = F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
        (loss + budget.step(used, step / steps)).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    with dg.usage(model) as used, torch.no_grad():
        model(text[: 32 * CONTEXT].view(32, CONTEXT))
    rates = torch.stack([used[name].open.mean() for name in used])
    for _ in range(20):  # what the limits cut off is given to the others
        rates = (rates * mean / rates.mean()).clamp(0.02, 1.0)
    return [float(rate) for rate in rates]
