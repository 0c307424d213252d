"""A compiled feed-forward layer as a module of buffers: for every number of tokens the strategy that was fastest.

Shapes in names: T tokens, D features, O outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate.inference.gpu.candidates import COMPILED, STRATEGIES, Strategy, strategy
from dynamicgate.inference.gpu.cuda_graph import CapturedCall
from dynamicgate.inference.gpu.lower import Lowered

BUFFERS = (
    "up_weight", "up_bias", "value_weight", "value_bias", "down_weight", "down_bias", "fused_weight", "fused_bias",
)  # fmt: skip


class FeedForward(nn.Module):
    """A gated feed-forward layer that runs by the strategy that was fastest for as many tokens as there are."""

    def __init__(self, lowered: Lowered) -> None:
        """Runs densely until `use_` is called."""
        super().__init__()
        self.activation, self.block, self.blocks = lowered.activation, lowered.block, lowered.blocks
        self.gate = lowered.gate
        for name in BUFFERS:
            self.register_buffer(name, lowered.tensors.get(name))
        self.use_([(None, "dense")], {})

    def use_(self, strategies: Sequence[tuple[int | None, str]], captured: Mapping[int, CapturedCall]) -> None:
        """`strategies`: each with the most tokens it runs, None for any number. `captured`: CUDA graphs, each for
        exactly that many tokens, which come first."""
        self.strategies = list(strategies)
        self.captured = dict(captured)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for `x` [..., features]."""
        weight: Tensor = self.up_weight  # type: ignore[assignment]
        if x.dtype is not weight.dtype or x.device != weight.device or x.shape[-1:] != weight.shape[1:]:
            raise ValueError(
                f"expected {weight.dtype} on {weight.device} with {weight.shape[1]} features in the last dimension, "
                f"received {x.dtype} on {x.device} of shape {tuple(x.shape)}"
            )
        x_TD = x.reshape(-1, weight.shape[1])
        with torch.no_grad():  # what was compiled without gradients would be compiled once more with them
            captured = self.captured.get(len(x_TD))
            if captured is not None and captured.can_run():
                y_TO = captured(x_TD)
            else:
                y_TO = self._strategy(len(x_TD))(self, x_TD)
        return y_TO.reshape(*x.shape[:-1], y_TO.shape[-1])

    def strategy_for(self, tokens: int) -> str:
        """The name of the strategy for that many tokens, unless a CUDA graph was captured for them."""
        for most, name in self.strategies:
            if most is None or tokens <= most:
                return name
        raise AssertionError("the last strategy runs any number of tokens")

    def _strategy(self, tokens: int) -> Strategy:
        """Where the whole model is compiled, what it is made of: one compiler inside another would end the graph."""
        name = self.strategy_for(tokens)
        return STRATEGIES[name.removesuffix(COMPILED)] if torch.compiler.is_compiling() else strategy(name)

    def _apply(self, fn: Any, recurse: bool = True) -> FeedForward:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.captured = {}  # the graphs hold the addresses of the old weights
        return self

    def extra_repr(self) -> str:
        """Shown by print."""
        return ", ".join(f"{name} up to {most}" if most else name for most, name in self.strategies)
