"""A budget that gives every layer the same open rate: the control for one budget that all layers share.

Tokens are still free: hard ones may open more blocks than easy ones, but no layer may take from another.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from dynamicgate.budget.controller import Controller
from dynamicgate.budget.penalties import straight_through_usage
from dynamicgate.gating.gate import Gate
from dynamicgate.gating.recording import Usage, named_gates, usage
from dynamicgate.lab.language.gpt import GPT
from dynamicgate.modules import evaluating

ROUNDS, FARTHEST = 30, 20.0  # of the search for each layer's last shift, and how far it looks, in logits


@dataclass
class EqualLayersBudget:
    """Holds the mean rate of open blocks of every layer to `rate`, each in a closed loop like that of `Budget`."""

    rate: float
    warmup: float
    ramp: float
    gain: float = 20.0
    integral: float = 0.5
    steer: float = 0.3
    controllers: dict[str, Controller] = field(default_factory=dict)
    _gates: dict[str, Gate] = field(default_factory=dict, repr=False)

    @torch.no_grad()
    def apply_(self, model: GPT, progress: float) -> None:
        """Steer the biases; call it before the forward pass."""
        self._gates = named_gates(model)
        for name, gate in self._gates.items():
            controller = self.controllers.setdefault(name, Controller())
            gate.bias.sub_(controller.nudge)
            controller.nudge = 0.0

    def step(self, used: Usage, progress: float) -> Tensor:
        """Take in what the gates decided, and return what to add to the task loss."""
        rates = torch.stack([used[site].open.mean() for site in used]).tolist()
        terms = []
        for site, rate in zip(used, rates, strict=True):
            controller = self.controllers[site]
            controller.step(
                rate, progress, all_open=1.0, final_all_open=1.0, target=self.rate, warmup=self.warmup,
                anneal=self.ramp, gain=self.gain, integral=self.integral, steer=self.steer,
            )  # fmt: skip
            terms.append(controller.lambda_ * straight_through_usage(used[site]).mean())
        return torch.stack(terms).mean()

    @torch.no_grad()
    def calibrate_(self, model: GPT, windows: list[Tensor]) -> None:
        """Shift the biases of each layer so that hard gates meet the rate, from the first layer to the last: what a
        layer reads depends on those before it."""
        for name, gate in named_gates(model).items():
            low, high = -FARTHEST, FARTHEST
            start = gate.bias.clone()
            for _ in range(ROUNDS):
                shift = (low + high) / 2
                gate.bias.copy_(start + shift)
                low, high = (low, shift) if _open_rate(model, name, windows) > self.rate else (shift, high)

    def state_dict(self) -> dict[str, Any]:
        """The controllers, to continue with."""
        return {name: asdict(controller) for name, controller in self.controllers.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was taken."""
        self.controllers = {name: Controller(**values) for name, values in state.items()}


def _open_rate(model: GPT, site: str, windows: list[Tensor]) -> float:
    with evaluating(model), usage(model) as used:
        for ids in windows:
            model(ids)
    return float(used[site].open.mean())
