"""What closed blocks pass back, for feed-forward layers that leave it to the budget; see `dynamicgate.nn.FFN`."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from dynamicgate.distributed import rank
from dynamicgate.nn.ffn import FFN, steer_gate_gradients_

BY_BUDGET = ("sampled", "auto")


@dataclass
class GateGradients:
    """Remembers since when the budget has come down.

    steps: how many the budget has taken. sparse_from: the progress at which layers with gate_gradient="auto" stopped
        computing closed blocks.
    """

    steps: int = 0
    sparse_from: float | None = None

    def apply_(self, model: nn.Module, progress: float, came_down: bool) -> None:
        """Set the layers of `model` for the next step. Says so, once, when they become sparse."""
        layers = [m for m in model.modules() if isinstance(m, FFN) and m.gate_gradient in BY_BUDGET]
        automatic = sum(layer.gate_gradient == "auto" for layer in layers)
        if automatic and came_down and self.sparse_from is None:
            self.sparse_from = progress
            if rank() == 0:
                print(f"the budget has come down: sparse gate gradient in {automatic} layers from {progress:.0%} on")
        steer_gate_gradients_(layers, self.steps, self.sparse_from is not None)
