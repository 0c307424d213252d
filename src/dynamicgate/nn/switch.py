"""Mixture of experts: one wide FFN whose blocks are the experts, and a router that opens k of them for each row.

Shapes in names: B rows (any leading dimensions), D features, N = experts * width hidden units.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn

from dynamicgate.gating.attach import gate_
from dynamicgate.gating.gate import Gate, GateConfig
from dynamicgate.gating.routing import DropPolicy
from dynamicgate.gating.sites import Site
from dynamicgate.nn.ffn import FFN
from dynamicgate.nn.normalize import Normalize

Fallback = Literal["identity", "bias"]


class Switch(FFN):
    """A layer of `experts` MLPs with `width` hidden units each, of which a router opens `top_k` for each row::

        p = softmax(router(x) / tau)
        y = sum over open experts e of w_e * down_e(act(up_e(x))) + bias

    The weight w_e is p_e for `top_k` = 1, as in the Switch Transformer, and p_e / (sum of p over the top-k) otherwise.

    The experts are stored side by side: ``up`` maps D features to experts * width hidden units, ``down`` maps back, and
    the router is the gate on the hidden units in blocks of `width`, ``down.gate``. The experts therefore share one
    output bias, and everything that counts, saves or skips gated blocks works for experts as well. On a CUDA GPU only
    open experts are computed, see `FFN`.
    """

    def __init__(
        self,
        features: int,
        experts: int,
        width: int,
        top_k: int = 1,
        capacity: float | None = None,
        *,
        drop_policy: DropPolicy = "position",
        fallback: Fallback = "identity",
        activation: str = "relu",
        kernels: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        """A router with `top_k` experts for each row.

        capacity, drop_policy: the capacity factor, and which rows a full expert keeps, see `GateConfig`.
        fallback: the output for a row that all its experts dropped: the input unchanged ("identity"), or the output
            bias alone ("bias"), which is right where the layer is used as ``x + switch(x)``.
        kernels: see `FFN`.
        """
        if min(features, experts, width) < 1:
            raise ValueError(
                f"features, experts and width must be 1 or more, received {features}, {experts} and {width}"
            )
        if not (isinstance(top_k, int) and 1 <= top_k <= experts):
            raise ValueError(f"top_k is a number of experts, expected 1 to {experts}, received {top_k!r}")
        if fallback not in ("identity", "bias"):
            raise ValueError(f"fallback must be identity or bias, received {fallback!r}")
        super().__init__(features, experts * width, activation=activation, kernels=kernels)
        self.features, self.experts, self.width = features, experts, width
        self.fallback = fallback
        self.residual = ResidualFallback()
        bound = 1.0 / math.sqrt(width)  # that of nn.Linear for one expert: the sum is over k experts, not all of them
        nn.init.uniform_(self.down.weight, -bound, bound)
        nn.init.uniform_(self.down.bias, -bound, bound)
        config = GateConfig(kind="router", block=width, top_k=top_k, capacity=capacity, drop_policy=drop_policy)
        gate_(self, config, where=[Site("down", ("up",), "up", experts * width)])

    def forward(self, x_BD: Tensor) -> Tensor:
        """The weighted sum of the outputs of each row's experts."""
        h_BN = self._write(x_BD)
        if self.fallback == "bias":
            return self._read(x_BD, h_BN)
        dropped_B1 = self._dropped_rows()  # after the router has decided and before `down` consumes the decision
        return self.residual(x_BD, self._read(x_BD, h_BN), dropped_B1)

    def _dropped_rows(self) -> Tensor | None:
        """The rows that all their experts dropped; None where nothing can be dropped."""
        router = getattr(self.down, "gate", None)
        if not isinstance(router, Gate) or router.config.capacity is None or router.pending is None:
            return None
        return (router.pending == 0.0).all(-1, keepdim=True)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        shape = f"{self.experts} experts, {self.features} -> {self.width} -> {self.features}"
        return f"{shape}, fallback={self.fallback}, kernels={self.kernels}"


class ResidualFallback(nn.Module):
    """The input in dropped rows, the output elsewhere. A module, so that tracing sees that the input is used here."""

    def forward(self, x_BD: Tensor, y_BD: Tensor, dropped_B1: Tensor | None) -> Tensor:
        """Choose row by row."""
        return y_BD if dropped_B1 is None else torch.where(dropped_B1, x_BD, y_BD)


class SwitchMLP(nn.Module):
    """The mixture of experts that the paper trains on MNIST (sec 5.5): Linear, ReLU, Switch, ReLU, Linear."""

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
        drop_policy: DropPolicy = "position",
        fallback: Fallback = "identity",
        normalize: Normalize | None = None,
    ) -> None:
        """`hidden`: features in front of and behind the `Switch`; `experts` and all that follows as in `Switch`."""
        super().__init__()
        if min(inputs, outputs) < 1:
            raise ValueError(f"inputs and outputs must be 1 or more, received {inputs} and {outputs}")
        self.normalize = normalize or nn.Identity()
        self.fc1 = nn.Linear(inputs, hidden)
        self.switch = Switch(hidden, experts, width, top_k, capacity, drop_policy=drop_policy, fallback=fallback)
        self.fc2 = nn.Linear(hidden, outputs)
        self.act = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Class scores for a batch of flat inputs, one row per sample."""
        h = self.act(self.fc1(self.normalize(x)))
        logits: Tensor = self.fc2(self.act(self.switch(h)))
        return logits
