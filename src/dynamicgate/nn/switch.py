"""Mixture of experts behind the same gate (sec 5.5): experts are the blocks of one wide FFN, a router opens k of them.

Shapes in names: B rows (any leading dimensions), D features, N = experts * width hidden units.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import Gate, GateConfig
from dynamicgate.gating.routing import Overflow
from dynamicgate.gating.sites import Site
from dynamicgate.nn.ffn import FFN
from dynamicgate.nn.normalize import Normalize

Unserved = Literal["identity", "bias"]


class Switch(FFN):
    """`experts` MLPs of `width` hidden units, of which a router opens `top_k` for each row (top-1 is the true Switch)::

        p = softmax(router(x) / tau)
        y = sum over the open e of w_e * down_e(act(up_e(x))) + bias      w = p, or p / (sum over the chosen) for k >= 2

    They are stored side by side: ``up`` is D -> experts * width, ``down`` is back, and the router is the gate of the
    hidden units in blocks of `width`, ``down.gate``. So the experts share one output bias, and whatever counts, saves
    or skips blocks serves experts too: on a CUDA GPU only open experts are computed, see `FFN`.
    """

    def __init__(
        self,
        features: int,
        experts: int,
        width: int,
        top_k: int = 1,
        capacity: float | None = None,
        *,
        overflow: Overflow = "first",
        unserved: Unserved = "identity",
        activation: str = "relu",
        kernels: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        """`capacity` and `overflow`: which rows an expert takes, see `GateConfig`. `unserved`: a row that found no
        place in any of its experts leaves as it came ("identity"), or as the "bias" alone, which is right in
        ``x + switch(x)``. `kernels`: see `FFN`."""
        if min(features, experts, width) < 1:
            raise ValueError(
                f"features, experts and width must be 1 or more, received {features}, {experts} and {width}"
            )
        if not (isinstance(top_k, int) and 1 <= top_k <= experts):
            raise ValueError(f"top_k is a number of experts, expected 1 to {experts}, received {top_k!r}")
        if unserved not in ("identity", "bias"):
            raise ValueError(f"unserved must be identity or bias, received {unserved!r}")
        super().__init__(features, experts * width, activation=activation, kernels=kernels)
        self.features, self.experts, self.width = features, experts, width
        self.unserved = unserved
        self.otherwise = PassThrough()
        bound = 1.0 / math.sqrt(width)  # what nn.Linear takes for one expert: the sum is over k of them, not all
        nn.init.uniform_(self.down.weight, -bound, bound)
        nn.init.uniform_(self.down.bias, -bound, bound)
        config = GateConfig(kind="router", block=width, top_k=top_k, capacity=capacity, overflow=overflow)
        gate_(self, config, where=[Site("down", ("up",), "up", experts * width)])

    def forward(self, x_BD: Tensor) -> Tensor:
        """The weighted answers of each row's experts."""
        h_BN = self._write(x_BD)
        if self.unserved == "bias":
            return self._read(x_BD, h_BN)
        nobody_B1 = self._nobody()  # known once the router has decided, forgotten once its decision is used
        return self.otherwise(x_BD, self._read(x_BD, h_BN), nobody_B1)

    def _nobody(self) -> Tensor | None:
        """The rows whose experts are all full; None where that cannot be."""
        router = getattr(self.down, "gate", None)
        if not isinstance(router, Gate) or router.config.capacity is None or router.pending is None:
            return None
        return (router.pending == 0.0).all(-1, keepdim=True)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        shape = f"{self.experts} experts, {self.features} -> {self.width} -> {self.features}"
        return f"{shape}, unserved={self.unserved}, kernels={self.kernels}"


class PassThrough(nn.Module):
    """x in the marked rows, else y. A module, so that tracing sees that x is read here too."""

    def forward(self, x_BD: Tensor, y_BD: Tensor, marked_B1: Tensor | None) -> Tensor:
        """Row by row."""
        return y_BD if marked_B1 is None else torch.where(marked_B1, x_BD, y_BD)


class SwitchMLP(nn.Module):
    """The paper's mixture of experts on MNIST (sec 5.5): Linear, ReLU, Switch, ReLU, Linear."""

    def __init__(
        self,
        inputs: int,
        hidden: int = 512,
        experts: int = 8,
        width: int = 512,
        outputs: int = 10,
        top_k: int = 2,
        capacity: float | None = 2.5,
        *,
        overflow: Overflow = "first",
        unserved: Unserved = "identity",
        normalize: Normalize | None = None,
    ) -> None:
        """`hidden` features between the layers; `experts`, `width` and the rest as in `Switch`."""
        super().__init__()
        if min(inputs, outputs) < 1:
            raise ValueError(f"inputs and outputs must be 1 or more, received {inputs} and {outputs}")
        self.normalize = normalize or nn.Identity()
        self.fc1 = nn.Linear(inputs, hidden)
        self.switch = Switch(hidden, experts, width, top_k, capacity, overflow=overflow, unserved=unserved)
        self.fc2 = nn.Linear(hidden, outputs)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Class scores for a batch of flat inputs, one row a sample."""
        h = self.act(self.fc1(self.normalize(x)))
        logits: Tensor = self.fc2(self.act(self.switch(h)))
        return logits
