"""Text from a GPT, token by token, each with what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dynamicgate.accounting import count_macs
from dynamicgate.accounting.counter import MacCounter, deployed
from dynamicgate.gating.recording import Usage, usage
from dynamicgate.lab.language.gpt import GPT, Cache
from dynamicgate.lab.language.relu_router import open_rates, routers_of
from dynamicgate.modules import evaluating


@dataclass(frozen=True)
class Token:
    """One generated token. macs: executed for it, attention to the cached positions included; dense: what the same
    model without gates would have executed."""

    number: int
    macs: float
    dense: float


@torch.no_grad()
def generate(
    model: GPT, prompt: Sequence[int], count: int, *, temperature: float = 0.8, top_p: float = 0.95, seed: int = 0
) -> Iterator[Token]:
    """`count` tokens that follow `prompt`. A temperature of 0 takes the most likely token each time.

    The model sees at most its context: once that is full, the older half is forgotten.
    """
    if not prompt:
        raise ValueError("the prompt is empty: expected at least one token to continue")
    if temperature < 0.0 or not 0.0 < top_p <= 1.0:
        raise ValueError(f"expected temperature >= 0 and 0 < top_p <= 1, received {temperature} and {top_p}")
    device = model.head.weight.device
    draw = torch.Generator().manual_seed(seed)
    context = model.config.context
    counter = count_macs(model, torch.zeros(1, 1, dtype=torch.long, device=device))
    seen = new = list(prompt)[-context:]
    cache: Cache = []
    with evaluating(model):
        for _ in range(count):
            with usage(model) as used:
                scores = model(torch.tensor([new], device=device), cache)[0, -1]
            number = choose_token(scores.float().cpu(), temperature, top_p, draw)
            yield Token(number, *_cost(model, counter, used, cache, len(new)))
            seen, new = [*seen, number], [number]
            if len(seen) > context:
                seen = seen[-context // 2 :]
                new, cache = seen, []


def choose_token(scores_V: Tensor, temperature: float, top_p: float, draw: torch.Generator) -> int:
    """The next token: drawn from the most likely ones that together have the probability `top_p`."""
    if temperature == 0.0:
        return int(scores_V.argmax())
    p, order = torch.softmax(scores_V / temperature, dim=-1).sort(descending=True)
    p[p.cumsum(0) - p >= top_p] = 0.0
    return int(order[torch.multinomial(p, 1, generator=draw)])


def _cost(model: GPT, counter: MacCounter, used: Usage, cache: Cache, tokens: int) -> tuple[float, float]:
    """Executed and dense MACs of the tokens of this step. The counter saw one token that looked at itself."""
    config, seen = model.config, cache[0][0].shape[2]
    pairs = sum(range(seen - tokens + 1, seen + 1)) - tokens  # beyond those that were counted
    attention = 2 * config.features * config.layers * pairs
    executed = float(counter.executed(deployed(counter.gates, used))) * tokens + attention
    dense = counter.dense * tokens + attention
    if routers := routers_of(model):  # the counter takes them for layers of the model, and their blocks for open
        executed -= 2 * config.features * config.width * tokens * sum(1.0 - float(rate) for rate in open_rates(routers))
        dense -= tokens * sum(router.net.weight.numel() for router in routers)
    return executed, dense
