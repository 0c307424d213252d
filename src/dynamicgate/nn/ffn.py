"""The feed-forward layer of a Transformer. Where there are kernels for it, closed blocks are not computed.

Shapes in names: B rows (any leading dimensions), D features, N hidden units, G blocks of units, O outputs.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor, fx, nn

from dynamicgate.activations import ACTIVATIONS, IN_LAYERS, check_activation
from dynamicgate.gating.gate import Gate
from dynamicgate.ops.ffn import FFNWeights, gated_ffn, tune

KERNEL_DEVICES = ("cuda",) if find_spec("triton") is not None else ()  # where closed blocks are skipped
KERNELS = ("auto", "always", "never")
GATE_GRADIENTS = ("dense", "sparse", "sampled", "auto")
SAMPLED = 4  # steps of training, of which "sampled" computes the gradient of closed blocks in one


class FFN(nn.Module):
    """A projection up to `width` hidden units, an activation, and a projection down. With `value`, a second projection
    up multiplies the hidden units::

        h = act(up(x)) [* value(x)]          SwiGLU: activation="silu", value=True
        y = down(h)

    The hidden units are gated like those of any two Linear layers, ``gate_(model, GateConfig(block=64))``, and then
    ``y = down(g * h)``. On a CUDA GPU with Triton, if the gate's decisions are hard, only open blocks are computed.
    Everywhere else all blocks are computed and closed ones are multiplied by zero. Outputs agree up to rounding.
    """

    def __init__(
        self,
        features: int,
        width: int,
        outputs: int | None = None,
        *,
        activation: str = "relu",
        value: bool = False,
        bias: bool = True,
        gate_gradient: Literal["dense", "sparse", "sampled", "auto"] = "dense",
        kernels: Literal["auto", "always", "never"] = "auto",
    ) -> None:
        """`outputs` defaults to `features`.

        gate_gradient: the gradient that a gate gets from its closed blocks; all gradients that do not flow through the
            gate are the same in both cases. "dense": what opening the block would change, as in dense training, which
            straight-through gates learn from; it costs the full projections up. "sparse": none, so that a gate learns
            only from its open blocks and its budget. "sampled": dense in every fourth step, four times as strong, so
            that four steps add up to the same, and sparse in the others. "auto": dense until a budget has come down,
            then sparse. For these two a `Budget` counts the steps; without one they are dense. Routers and gates with a
            scale of "softmax" or "relu" have no gradient there and always use "sparse".
        kernels: "auto" computes everything where the layer is so small that a GPU would wait for the kernels to be
            launched. "always" uses the kernels there too, for CUDA graphs, which launch faster. "never" computes
            everything, also on a GPU.
        """
        super().__init__()
        outputs = features if outputs is None else outputs
        if min(features, width, outputs) < 1:
            raise ValueError(
                f"features, width and outputs must be 1 or more, received {features}, {width} and {outputs}"
            )
        check_activation(activation, IN_LAYERS)
        if gate_gradient not in GATE_GRADIENTS:
            raise ValueError(f"gate_gradient must be one of {', '.join(GATE_GRADIENTS)}, received {gate_gradient!r}")
        if kernels not in KERNELS:
            raise ValueError(f"kernels must be one of {', '.join(KERNELS)}, received {kernels!r}")
        self.activation, self.gate_gradient, self.kernels = activation, gate_gradient, kernels
        self._steered = 1.0  # what a budget chose for this step, for "sampled" and "auto"
        self.up = nn.Linear(features, width, bias=bias)
        self.act = ACTIVATIONS[activation].build()
        self.value = nn.Linear(features, width, bias=bias) if value else None
        self.down = nn.Linear(width, outputs, bias=bias)

    def forward(self, x_BD: Tensor) -> Tensor:
        """The outputs for each row."""
        return self._read(x_BD, self._write(x_BD))

    def _write(self, x_BD: Tensor) -> Tensor | None:
        """All hidden units; None where the gate has decided first and `_read` will compute only the open ones."""
        gate = self._gate_for_kernels(x_BD)
        if gate is not None:
            gate.decide_before(self.up, (x_BD,))  # records the decision, as its hook does
            return None
        h_BN = self.act(self.up(x_BD))
        return h_BN if self.value is None else h_BN * self.value(x_BD)

    def _read(self, x_BD: Tensor, h_BN: Tensor | None) -> Tensor:
        if h_BN is not None:
            return self.down(h_BN)
        gate: Gate = self.down.gate  # type: ignore[assignment]
        value, value_bias = (None, None) if self.value is None else (self.value.weight, self.value.bias)
        weights = FFNWeights(self.up.weight, self.down.weight, value, self.up.bias, self.down.bias, value_bias)
        closed = 0.0 if gate.config.learns_from_open else self.closed_gradient
        return gated_ffn(
            x_BD,
            weights,
            _with_closed_gradient(gate.take(), closed),
            block=gate.block,
            activation=self.activation,
            gate_gradient="dense" if closed else "sparse",
        )

    def _gate_for_kernels(self, x_BD: Tensor) -> Gate | None:
        """The gate on the hidden units, if the kernels can skip what it closes; else None."""
        gate = getattr(self.down, "gate", None)
        if self.kernels == "never" or gate is None or isinstance(x_BD, fx.Proxy):  # tracing must see the layers
            return None
        dtype = torch.get_autocast_dtype(x_BD.device.type) if _autocast(x_BD) else x_BD.dtype
        known = dtype in tune.DTYPES and ACTIVATIONS[self.activation].in_triton
        known = known and (_autocast(x_BD) or dtype == self.up.weight.dtype)
        large = self.kernels == "always" or x_BD.numel() * self.up.out_features >= tune.LEAST_WORK
        runs = x_BD.device.type in KERNEL_DEVICES and known and large
        hard = gate.policy in ("hard", "bernoulli", "gumbel") and gate.block >= tune.LEAST_BLOCK
        writers = (self.up,) if self.value is None else (self.up, self.value)
        decides = any(layer._forward_pre_hooks for layer in writers)  # not a gate that reads another layer
        return gate if runs and hard and decides and all(unwatched(m, gate) for m in (*writers, self.down)) else None

    @property
    def closed_gradient(self) -> float:
        """What the gradient of closed blocks is multiplied by in this step; 0: it is not computed."""
        return {"dense": 1.0, "sparse": 0.0}.get(self.gate_gradient, self._steered)

    def extra_repr(self) -> str:
        """Shown by print(model)."""
        return f"gate_gradient={self.gate_gradient}, kernels={self.kernels}"


def steer_gate_gradients_(layers: Iterable[FFN], step: int, came_down: bool) -> None:
    """Set what closed blocks pass back in this step of training. came_down: whether the budget has."""
    for layer in layers:
        if layer.gate_gradient == "sampled":
            layer._steered = 0.0 if step % SAMPLED else float(SAMPLED)
        elif layer.gate_gradient == "auto":
            layer._steered = 0.0 if came_down else 1.0


def _with_closed_gradient(factor_BG: Tensor, weight: float) -> Tensor:
    """The same factors, where closed ones (0) pass back `weight` times their gradient."""
    if weight in (0.0, 1.0):  # not computed, or as it is
        return factor_BG
    closed_BG = (factor_BG.detach() == 0).to(factor_BG.dtype)
    return factor_BG + (weight - 1.0) * closed_BG * (factor_BG - factor_BG.detach())


def _autocast(x_BD: Tensor) -> bool:
    return torch.is_autocast_enabled(x_BD.device.type)


def unwatched(linear: nn.Linear, gate: Gate | None) -> bool:
    """Whether `linear` is a plain `nn.Linear` with no hook but those of this gate: any other hook must see it run."""
    after = (linear._forward_hooks, linear._backward_hooks, linear._backward_pre_hooks)
    own = all(gate is not None and key in gate.hook_ids for key in linear._forward_pre_hooks)
    return type(linear) is nn.Linear and own and not any(after)
