"""Make a gate that chooses by the input a constant one: what it opens on average is then open for every input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.gating.gate import Gate
from dynamicgate.gating.networks import StaticLogits
from dynamicgate.masks import connections


def can_fold(gate: Gate) -> bool:
    """Whether it has a network of its own that nobody prunes, and decides before the units it closes are computed."""
    linears = [m for m in gate.net.modules() if isinstance(m, nn.Linear)]
    config = gate.config
    plain = config.kind == "dynamic" and config.top_k is None and not config.scale and not config.soft_width
    return (
        plain and gate.site.decides_in_time and bool(linears) and all(connections(linear) is None for linear in linears)
    )


@torch.no_grad()
def fold_(gate: Gate, logits_G: Tensor | None = None) -> None:
    """Replace the network of `gate` by constant logits: `logits_G`, or the biases as they are. The bias stays the same
    parameter, so that an optimizer goes on with it. Without noise in training, whose draws would open other units than
    those that stay."""
    bias = gate.bias
    for parameter in gate.net.parameters():
        parameter.grad = None  # of the last step: an optimizer would use it
    net = StaticLogits(gate.blocks)
    net.bias = bias
    if logits_G is not None:
        bias.copy_(logits_G)
    gate.net = net
    noisy = gate.config.train in ("bernoulli", "concrete", "gumbel")
    train = "hard" if noisy else gate.config.train
    gate.config = replace(gate.config, kind="static", net="auto", rank=None, train=train)


def fold_as_in_(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Fold the gates of `model` that are constant in `state`, the tensors of a checkpoint by name: training made them
    so before it was saved."""
    for path, gate in model.named_modules():
        constant = f"{path}.net.bias" in state and f"{path}.net.weight" not in state
        if isinstance(gate, Gate) and constant and can_fold(gate):
            fold_(gate)
