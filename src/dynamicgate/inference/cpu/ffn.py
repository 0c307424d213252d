"""A feed-forward layer as one native op: gate, up, activation, value if there is one, and down, over open blocks.

Shapes in names: N hidden units, G blocks of units.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dynamicgate import ops
from dynamicgate.gating.gate import Gate
from dynamicgate.inference.gates import GateInTorch, RouterInTorch, factor_for_all, gate_net, router_k, without_prefix


@torch.no_grad()
def ffn_layers(
    up: nn.Linear, value: nn.Linear | None, down: nn.Linear, activation: str, gate: Gate | None
) -> tuple[tuple[ops.chain.Layer, ops.chain.Layer], RouterInTorch | None]:
    """The layer as a chain, and the router where blocks compete: that decides in torch. What a gate closes for
    every input is sliced away."""
    held = [up.weight, up.bias, None if value is None else value.weight, None if value is None else value.bias]
    parts = [None if tensor is None else tensor.detach() for tensor in held]
    down_weight, down_bias = down.weight.detach(), None if down.bias is None else down.bias.detach()
    block, net, router = 0, None, None
    if gate is not None and (factor_G := factor_for_all(gate)) is not None:
        factor_N = gate.per_unit(factor_G)
        kept_N = factor_N != 0
        kept_N[0] |= not bool(kept_N.any())  # a layer must have a unit
        parts = [None if tensor is None else tensor[kept_N] for tensor in parts]
        down_weight = (down_weight * factor_N)[:, kept_N]
    elif gate is not None:
        block, net = gate.block, gate_net(gate)
        if gate.config.competes:
            router = RouterInTorch(GateInTorch(net), router_k(gate), float(gate.tau))
            net = None
    assert parts[0] is not None
    first = ops.chain.Layer(parts[0], parts[1], activation, block, net, value_weight=parts[2], value_bias=parts[3])
    return (first, ops.chain.Layer(down_weight, down_bias)), router


class NativeFFN(nn.Module):
    """A feed-forward layer that computes open blocks only, for any number of rows."""

    weights: Tensor
    program: Tensor

    def __init__(self, packed: ops.chain.Packed, router: RouterInTorch | None = None) -> None:
        """`packed` is the chain that `ffn_layers` gave."""
        super().__init__()
        ops.chain.check_packed(packed)
        self.register_buffer("weights", packed.weights)
        self.register_buffer("program", packed.program)
        self.outputs, self.router = packed.outputs, router

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        ops.chain.check_packed(self._packed)

    @property
    def _packed(self) -> ops.chain.Packed:
        return ops.chain.Packed(self.weights, self.program, self.outputs)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs for `x` [..., features]."""
        if x.dtype is not torch.float32:
            raise ValueError(f"a plan on the CPU runs in float32, received {x.dtype}: leave autocast out")
        if self.router is None:
            rows = x.reshape(-1, x.shape[-1])
            return ops.chain.run(rows, self._packed).reshape(*x.shape[:-1], self.outputs)
        return ops.chain.run(x, self._packed, self.router(x))

    def describe(self) -> dict[str, Any]:
        """Everything that is not a tensor."""
        return {"outputs": self.outputs, "router": None if self.router is None else self.router.describe()}

    @staticmethod
    def from_description(described: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> NativeFFN:
        """The inverse of `describe`, with the buffers, which are not copied."""
        packed = ops.chain.Packed(tensors["weights"], tensors["program"], described["outputs"])
        router = described["router"]
        if router is not None:
            router = RouterInTorch.from_description(router, without_prefix(tensors, "router"))
        return NativeFFN(packed, router)
